"""The code of a client's job: from its archive in S3 into the job's record, before the job is started.

On SageMaker each host's toolkit fetches it. Here the archive is a file of this machine, and a job whose code cannot be
had is refused with the reason before anything starts.
"""

from __future__ import annotations

import threading

from container.system.locations import is_s3
from container.toolkit.code import code
from estimators.job.errors import ConfigurationError
from estimators.job.request import TrainingJobSpec
from estimators.records.record import JobRecord
from estimators.service.storage import Storage, split_uri

#: What an archive may unpack to, in bytes. The client waits, and sends its request again when that takes too long.
_MAX_BYTES = 1 << 30
#: One at a time: the disk is the same for all.
_UNPACKING = threading.Lock()


def bring_source(spec: TrainingJobSpec, record: JobRecord, storage: Storage) -> None:
    """Unpack the archive that ``sagemaker_submit_directory`` names into the record's ``source/``.

    Nothing is done for a job that brings no code, or whose code is a path of this machine.

    Raises:
        ConfigurationError: there is no such object, it is not an archive, or it is not safe to unpack.
    """
    place, program = spec.submit_directory, spec.program
    if place is None or program is None or not is_s3(place):
        return
    bucket, key = split_uri(place)
    path = storage.path(bucket, key)
    if path is None or not path.is_file():
        raise ConfigurationError(
            f"sagemaker_submit_directory: there is no object {place} on this endpoint's S3 server. Upload the archive "
            "to this server. The SDK uploads it automatically if you use the endpoint's AWS profile."
        )
    record.source_dir.mkdir(mode=0o700)
    try:
        with _UNPACKING:
            code.materialize(str(path), record.source_dir, program, max_bytes=_MAX_BYTES)
    except code.CodeError as error:
        raise ConfigurationError(f"sagemaker_submit_directory {place}: {error}") from error
