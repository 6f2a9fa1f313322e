"""Read and unpickle the return value or the exception of a job's function, which are files in the job's outputs."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import tarfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.failures import Failure
from container.contract.frozen import dataclass
from container.system.archive import extract
from container.system.locations import is_s3
from estimators.client.functions import packing, runner
from estimators.job.errors import FleetfitError, RecordError, TrainingJobError, with_users_frames_only
from estimators.job.log_redaction import text_mask
from estimators.records import outputs
from estimators.records.record import JobRecord

#: Number of characters of an exception's message that are compared with the failure's reason. Only the beginning is
#: compared, because the reason may have been cut off.
_TOLD = 300


class RemoteTraceback(Exception):
    """The traceback of an exception that a function raised on a host.

    In this process, it is the ``__cause__`` of the exception.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


@dataclass(frozen=True)
class _Said:
    """A file that a process of the job wrote. The file contains a return value or an exception."""

    name: str
    packed: bytes

    def load(self) -> dict[str, Any]:
        """Unpickle the file's content.

        Raises:
            RecordError: unpickling failed, for example because a module has changed or is not installed here.
        """
        try:
            said: dict[str, Any] = pickle.loads(self.packed)
        except Exception as error:  # the unpickled classes can raise any exception
            raise RecordError(
                f"the function's return value cannot be unpickled here: {type(error).__name__}: {error}. Import the "
                "modules of its types, then try again."
            ) from error
        return said


def is_function(record: JobRecord) -> bool:
    """Return whether a job's entry point was a function.

    If the record does not contain the job's code, the result is derived from the program's name.
    """
    if record.source_dir.is_dir():
        return (record.source_dir / runner.FOLDER / runner.FUNCTION).is_file()
    program = codec.decode_value((record.read_request().get("HyperParameters") or {}).get(codec.PROGRAM))
    return isinstance(program, str) and packing.is_program(program)


def description_of(record: JobRecord) -> dict[str, Any] | None:
    """Return the recorded description of a job's function, or None if the entry point is a script.

    The description contains the function's name, parameters and source.
    """
    try:
        text = (record.source_dir / runner.FOLDER / runner.DESCRIPTION).read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RecordError(
            f"job {record.name}: the description of the job's function cannot be read: {error}."
        ) from error
    return found


def place_of(function: Mapping[str, Any]) -> str:
    """Return a function's name, file and line as text for display.

    Args:
        function: The description that :func:`description_of` returned.
    """
    source = function.get("source") or {}
    where = f", {source['file']}:{source['line']}" if source.get("file") else ""
    return f"{function['name']}(){where}"


def text_of(function: Mapping[str, Any]) -> str:
    """Return a function's source text, or ``""`` if the source is unknown.

    Args:
        function: The description that :func:`description_of` returned.
    """
    return textwrap.dedent((function.get("source") or {}).get("text") or "")


def value_of(record: JobRecord) -> Any:
    """Return the function's return value on rank 0 of a completed job.

    Raises:
        RecordError: rank 0 returned no value, or the value cannot be unpickled here.
        FleetfitError: the value could not be pickled on the host of rank 0.
    """
    found = [said for said in _left(record) if said.name == runner.VALUE]
    if not found:
        raise RecordError(
            f"job {record.name}: rank 0 has returned no value. Its process may have ended before the function "
            f"returned, for example by sys.exit(). The job's outputs: {outputs.output_data(record) or 'none'}."
        )
    value = _returned(record, found[0])
    return _bring(record, value[1], value[2]) if _is_path(value) else value


def _returned(record: JobRecord, said: _Said) -> Any:
    loaded = said.load()
    if "problem" in loaded:
        raise FleetfitError(
            f"job {record.name}: the function's return value was lost: {loaded['problem'].rstrip('.')}."
        )
    return loaded["value"]


def _is_path(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and value[0] == "fleetfit:path"


def exception_of(record: JobRecord, failure: Failure | None) -> BaseException | None:
    """Return the exception of the user's function that made a job fail, or None if the exception is unknown.

    The exception's cause shows the traceback on the host.

    Args:
        record: The job's record.
        failure: The job's failure, which contains the rank and the message of the exception.
    """
    # On SageMaker, the failure has only a message and no traceback.
    if failure is None:
        return None
    mask = text_mask(record.read_request())  # the failure has been masked, but the files have not
    told = mask(failure.traceback or failure.message)
    found = []
    for said in _tried(record):
        if said.name.startswith("error-"):
            with contextlib.suppress(RecordError):
                loaded = said.load()
                # Ignore exceptions of an earlier attempt of the job.
                if "error" in loaded and any(line[:_TOLD] in told for line in _headlines(mask(loaded["text"]))):
                    found.append((not said.name.endswith(f"-{failure.rank}.pkl"), loaded["time"], loaded))
    if not found:
        return None
    first = min(found, key=lambda item: item[:2])[2]
    error: BaseException = first["error"]
    place = ", ".join(part for part in (f"training job {record.name}", failure.host, failure.process) if part)
    error.__cause__ = RemoteTraceback(f"{first['text'].rstrip()}\n\n{place}; logs: {record.hosts_dir}\n")
    return error


def _headlines(text: str) -> tuple[str, str]:
    """Return the line of a traceback that names the exception, and the last line of the traceback.

    These are two different lines if the exception's message has several lines.
    """
    text = text.encode("utf-8", "replace").decode()  # as in the process's output
    lines = text.rstrip().splitlines() or [""]
    last_frame = max((place for place, line in enumerate(lines) if line.startswith("  File ")), default=0)
    named = next((line for line in lines[last_frame:] if line and not line.startswith((" ", "Traceback"))), lines[-1])
    return named, lines[-1]


def debugged_value(record: JobRecord) -> Any:
    """Return the return value of a function that ran in the foreground.

    Raises:
        RecordError: the value cannot be unpickled here.
        FleetfitError: the value could not be pickled.
    """
    said = next((said for said in _in_tree(record) if said.name == runner.VALUE), None)
    value: Any = _returned(record, said) if said is not None else None
    if not _is_path(value):
        return value
    tree = record.tree(record.hosts[0])
    return (tree.model if value[1] == "model" else tree.output_data) / value[2]


def debugged_exception(record: JobRecord) -> BaseException | None:
    """Return the exception of a function that ran in the foreground.

    Return None if the function raised no exception, or if the exception cannot be unpickled.

    The traceback has already been printed in the terminal.
    """
    for said in _in_tree(record):
        if said.name.startswith("error-"):
            with contextlib.suppress(RecordError):
                error: BaseException | None = said.load().get("error")
                return error
    return None


def _in_tree(record: JobRecord) -> list[_Said]:
    """Return the files with return values and exceptions of a process that ran in the foreground."""
    folder = record.tree(record.hosts[0]).output_data / runner.RETURNED
    return [_Said(path.name, path.read_bytes()) for path in sorted(folder.glob("*.pkl"))]


def _tried(record: JobRecord) -> list[_Said]:
    """Return the files with return values and exceptions in the outputs of a failed job.

    Return an empty list if the outputs cannot be read.
    """
    with contextlib.suppress(RecordError):
        return list(_left(record))
    return []


def of_function(error: TrainingJobError) -> BaseException:
    """Return the exception that the job's function raised.

    If the job failed for another reason, return the job's error.

    Args:
        error: The job's error.
    """
    return with_users_frames_only(error.__cause__) if error.__cause__ is not None else error


def _left(record: JobRecord) -> Iterator[_Said]:
    """Yield the files with return values and exceptions in the job's outputs."""
    archive = _archive(record, outputs.output_data(record))
    if archive is None:
        return
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                file = tar.extractfile(member) if member.isfile() and path.parent.name == runner.RETURNED else None
                if file is not None and not path.name.startswith("."):
                    yield _Said(path.name, file.read())
    except (OSError, tarfile.TarError) as error:
        raise RecordError(f"job {record.name}: {archive} cannot be read: {error}.") from error


def _bring(record: JobRecord, kind: str, path: str) -> Path:
    """Return the local path of a file or folder in the job's model or outputs.

    If the archive with the path has not been unpacked yet, unpack the archive into the record first.

    Args:
        record: The job's record.
        kind: ``model`` for the model folder. Any other text means the folder of the other outputs.
        path: The path relative to this folder.

    Raises:
        RecordError: the archive does not contain the path.
    """
    target = record.copies_dir / kind
    place = outputs.model_data(record) if kind == "model" else outputs.output_data(record)
    if not (target / path).exists():
        archive = _archive(record, place)
        if archive is not None:
            whole = target.with_name(f".{kind}.{os.getpid()}")
            shutil.rmtree(whole, ignore_errors=True)
            whole.mkdir(parents=True, mode=0o700)
            extract(archive, whole)
            shutil.rmtree(target, ignore_errors=True)
            whole.rename(target)
    if not (target / path).exists():
        raise RecordError(f"job {record.name}: the function returned {path}, which is not in {place or 'its outputs'}.")
    return target / path


def _archive(record: JobRecord, place: str | None) -> Path | None:
    """Return the local path of an archive of a job.

    If the archive is on S3, download it into the job's record first.
    """
    if place is None or not is_s3(place):
        return Path(place) if place is not None else None
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    target = record.copies_dir / place.rpartition("/")[2]
    if not target.is_file():
        bucket, _, key = place.removeprefix("s3://").partition("/")
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        whole = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            (boto3.DEFAULT_SESSION or boto3.session.Session()).client("s3").download_file(bucket, key, str(whole))
            whole.replace(target)
        except (BotoCoreError, ClientError, OSError) as error:
            raise RecordError(f"job {record.name}: {place} cannot be downloaded: {error}.") from error
    return target
