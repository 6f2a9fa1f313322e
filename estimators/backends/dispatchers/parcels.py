"""Collect the files on this machine that a job needs at a dispatcher. The files and the job's request form a parcel.

In the request, each file gets a path below the job's record on this machine. In the parcel, the file has the same name
below the dispatcher's record. The program on the dispatcher's machine replaces the path of this machine's folder of
records by the path of the folder of records there (:func:`relocated`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tarfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from container.contract import hyperparameters as codec
from container.contract import rules
from container.contract.messages import encode
from container.contract.strategies import DISCOVERED_BY_CALLER, Elastic
from container.contract.texts import map_texts
from container.system.locations import is_s3, path_here
from estimators import backends
from estimators.backends.dispatchers.base import LIMIT, Parcel
from estimators.job.request import JobOptions, RunOptions, TrainingJobSpec
from estimators.records.record import JobRecord, jobs_folder

#: The files of a record that are sent. These files are written before a job begins.
_OF_RECORD = ("events.jsonl", "provenance.json", "source")
#: Folders in the dispatcher's record: for the files of channels, and for the files that the strategy names.
_INPUTS, _ATTACHED = "inputs", "attached"


def refusals(spec: TrainingJobSpec) -> list[str]:
    """Describe the features of a job that a dispatcher does not support, and the channels whose files do not exist.

    Each description contains the remedy.
    """
    found = []
    for channel in spec.inputs:
        s3 = channel.source.s3
        path = path_here(s3.uri) if s3 is not None else None
        if path is None:
            continue
        if not path.exists():
            found.append(f"channel {channel.name!r}: {path} does not exist.")
        elif s3 is not None and s3.data_type != "S3Prefix":
            found.append(
                f"channel {channel.name!r}: {path} lists files of this machine. Put the files and the list on S3."
            )
    places = {"checkpoint_s3_uri": spec.checkpoint.uri if spec.checkpoint is not None else None}
    if path_here(spec.output.path) != jobs_folder():
        places["output_path"] = spec.output.path
    for argument, uri in places.items():
        if uri is not None and not is_s3(uri):
            found.append(
                f"{argument}={uri!r} is a folder of this machine. Give an S3 URI, or leave {argument} out: the "
                "job's files are then copied into the job's record on this machine."
            )
    strategy = spec.strategy
    if isinstance(strategy, Elastic) and strategy.discovery == DISCOVERED_BY_CALLER:
        found.append(
            f"{type(strategy).__name__}(discovery=…) is a function of this process, but with a dispatcher the job "
            "runs without this process. Give a script, which is sent with the job."
        )
    return found


def of(record: JobRecord, spec: TrainingJobSpec, options: JobOptions) -> Parcel:
    """Return the parcel of a job for its dispatcher.

    Args:
        record: The job's record. All files that are written before a job begins must already be in it.
        spec: The job.
        options: The run options of the job.
    """
    request = spec.to_request()
    files = [(record.path / name, name) for name in _OF_RECORD if (record.path / name).exists()]
    for channel, described in zip(spec.inputs, request.get("InputDataConfig") or (), strict=True):
        source = channel.source.s3
        path = path_here(source.uri) if source is not None else None
        if path is not None:
            name = f"{_INPUTS}/{channel.name}" + (f"/{path.name}" if path.is_file() else "")
            files.append((path, name))
            described["DataSource"]["S3DataSource"]["S3Uri"] = (record.path / name).as_uri()
    attached = dict(_attached(spec))
    hyperparameters = request.get("HyperParameters") or {}
    for key, (path, rest) in attached.items():
        name = f"{_ATTACHED}/{path.name}"
        files.append((path, name))
        hyperparameters[key] = codec.encode({key: f"{record.path / name}{rest}"})[key]
    backend = backends.load(options.backend)
    there = dataclasses.replace(
        options, backend_options=backend.portable(spec, options), dispatcher=None, dispatcher_options={}
    )
    header = {
        "name": spec.name,
        "request": request,
        "options": rules.to_dict(there),
        "created": (record.stored_status() or {}).get("CreationTime"),
        "jobs": str(record.path.parent),
        "python": RunOptions().python,
        "environment": {name: value for name, value in os.environ.items() if name.startswith(_PASSED)},
    }
    return Parcel(name=spec.name, header=json.loads(json.dumps(header)), files=tuple(files))


#: Prefixes of the environment variables on this machine that the dispatcher's supervisor gets, too: AWS's variables,
#: for data on S3.
_PASSED = ("AWS_", "S3_ENDPOINT_URL")


def _attached(spec: TrainingJobSpec) -> Iterator[tuple[str, tuple[Path, str]]]:
    """Yield the strategy's hyperparameters that name a file on this machine.

    Each item is ``(name, (path, rest))``. ``rest`` is the part of the hyperparameter's value after the path, such as
    ``:function``.
    """
    strategy = spec.strategy
    if not isinstance(strategy, Elastic):
        return
    if strategy.discovery not in (None, DISCOVERED_BY_CALLER) and os.path.exists(strategy.discovery):
        yield strategy.parameters["discovery"], (Path(strategy.discovery), "")
    file, colon, name = (strategy.exclusion or "").rpartition(":")
    if file.endswith(".py") and os.path.exists(file):
        yield strategy.parameters["exclusion"], (Path(file), colon + name)


def write(stream: IO[bytes], parcel: Parcel) -> None:
    """Write a parcel: its header as one line, then its files as a tar archive.

    Links are replaced by the files and folders to which they lead. Sockets, pipes and devices are omitted.
    """
    stream.write(encode({"op": "parcel", **parcel.header}, LIMIT))
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for path, name in parcel.files:
            for file, called in _files(path, name, ()):
                info = tarfile.TarInfo(called)
                found = file.stat()
                info.mode = found.st_mode & 0o700
                info.mtime = int(found.st_mtime)
                if file.is_dir():
                    info.type = tarfile.DIRTYPE
                    archive.addfile(info)
                    continue
                with file.open("rb") as source:
                    info.size = os.fstat(source.fileno()).st_size
                    archive.addfile(info, source)


def _files(path: Path, name: str, above: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    if path.is_file():
        yield path, name
    elif path.is_dir() and (real := path.resolve()) not in above:
        yield path, name
        for child in sorted(path.iterdir()):
            yield from _files(child, f"{name}/{child.name}", (*above, real))


def relocated(value: Any, old: str, new: str) -> Any:
    """Return a value in which paths below the folder ``old`` are replaced by paths below ``new``.

    Paths in ``file://`` URIs are replaced, too.
    """
    escaped = urllib.parse.quote(old), urllib.parse.quote(new)

    def relocate(text: str) -> str:
        for scheme, before, after in (("", old, new), ("file://", *escaped), ("file://", old, new)):
            found = re.fullmatch(rf'("?{scheme}){re.escape(before)}((?:/.*|")?)', text, re.DOTALL)
            if found is not None:
                return f"{found[1]}{after}{found[2]}"
        return text

    return map_texts(value, relocate)
