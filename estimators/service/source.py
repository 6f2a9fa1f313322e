"""Unpack the code of a client's job from an archive in S3 into the job's record, before the job starts.

On SageMaker, each host's toolkit, the process that starts the script, downloads the archive. Here the archive is a
local file. If the code is not available, the job is refused before it starts, and the error has the reason.
"""

from __future__ import annotations

import threading

from container.system.locations import is_s3
from container.toolkit.code import code
from estimators.job.errors import ConfigurationError
from estimators.job.request import TrainingJobSpec
from estimators.records.record import JobRecord
from estimators.service.storage import Storage

#: The largest unpacked size of an archive, in bytes. The client waits while the archive is unpacked, and repeats its
#: request after a timeout.
_MAX_BYTES = 1 << 30
#: Only one archive at a time is unpacked, because all use the same disk.
_UNPACKING = threading.Lock()


def bring_source(spec: TrainingJobSpec, record: JobRecord, storage: Storage) -> None:
    """Unpack the archive that ``sagemaker_submit_directory`` names into the record's ``source/``.

    If the job has no code, or its code is a path of this machine, do nothing.

    Raises:
        ConfigurationError: the archive does not exist on the S3 server, is not an archive, or is not safe to unpack.
    """
    place, program = spec.submit_directory, spec.program
    if place is None or program is None or not is_s3(place):
        return
    bucket, _, key = place.removeprefix("s3://").partition("/")
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
