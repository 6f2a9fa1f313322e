"""Improve the hint about a module that a script could not import. The module may be a file of the user that is next to
the job's code, but was not sent to the hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from container.contract import hints
from container.contract.failures import Failure
from estimators.job.errors import RecordError
from estimators.records.record import JobRecord


def with_neighbours(failure: Failure, record: JobRecord) -> Failure:
    """Return a failure with a better hint about each missing module whose file is next to the job's code on the
    caller's machine. Return the failure unchanged if there is no such module.
    """
    if not any(hints.missing_module(hint) for hint in failure.hints):
        return failure
    with contextlib.suppress(RecordError, OSError, KeyError, TypeError, AttributeError):
        facts = record.read_json(record.provenance_file)
        code, cwd = Path(facts["code"]), facts["caller"]["cwd"] or "/"
        found = tuple(hint_at(hint, code, cwd, record.source_dir) or hint for hint in failure.hints)
        return dataclasses.replace(failure, hints=found)
    return failure


def hint_at(hint: str, code: Path, cwd: str, sent: Path) -> str | None:
    """Return a better hint if a missing module is near the job's code.

    Args:
        hint: A hint from the host's toolkit, the process that starts the script. The toolkit knows only the files that
            were sent.
        code: The path of the entry point if only this file was sent. Otherwise, the path of the source folder.
        cwd: The caller's working directory.
        sent: The folder of the job's copy of the code.

    Returns:
        The better hint. None if the hint names no missing module, or the module is not near the code.
    """
    module = hints.missing_module(hint)
    if module is None:
        return None
    name = module.partition(".")[0]
    if code.is_dir() and (excluded := _excluded(name, code, sent)) is not None:
        return (
            f"{excluded} is in {code.name}/, but was not sent, because .fleetfitignore or .gitignore excludes it. Edit "
            "or create .fleetfitignore in the source folder: this file replaces .gitignore files."
        )
    near = next((path for path in (code.parent / f"{name}.py", code.parent / name) if _is_there(path)), None)
    if near is None:
        return None
    folder = _as_typed(near.parent, cwd)
    if code.suffix and not code.is_dir():
        entry = f", entry_point={code.name!r}" if folder != "." else ""
        return (
            f"{near.name} is next to {code.name}, but only {code.name} was sent. To send the whole folder, set "
            f"source_dir={folder!r}{entry} (--source-dir {folder})."
        )
    path = _as_typed(near, cwd)
    return (
        f"{near.name} is next to {code.name}/, but only {code.name}/ was sent. To send {near.name} too, set "
        f"dependencies=[{path!r}] (--dependency {path})."
    )


def _excluded(name: str, code: Path, sent: Path) -> Path | None:
    """Return the path of a module that is in the source folder, or in one of its subfolders, but was not sent. The path
    is relative to the source folder. Return None if there is no such module.
    """
    for path in (code / f"{name}.py", code / name, *code.glob(f"*/{name}.py"), *code.glob(f"*/{name}")):
        if _is_there(path) and not (sent / path.relative_to(code)).exists():
            return path.relative_to(code)
    return None


def _as_typed(path: Path, cwd: str) -> str:
    """Return a path relative to the working directory if the path is below that directory. Return other paths
    unchanged.
    """
    return os.path.relpath(path, cwd) if path == Path(cwd) or Path(cwd) in path.parents else str(path)


def _is_there(path: Path) -> bool:
    return path.is_file() if path.suffix == ".py" else any(path.glob("*.py"))
