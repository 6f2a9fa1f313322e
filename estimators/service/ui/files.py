"""Find the files of a job that the job's page offers for download.

These are the outputs, the checkpoints, the result, and the outputs of hosts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from container.contract.frozen import dataclass
from container.system.locations import path_here
from estimators.records import outputs
from estimators.records.record import JobRecord
from estimators.results import saving
from estimators.results.summary import bytes_text

#: The maximum number of listed files of a job.
MOST = 500


@dataclass(frozen=True)
class ListedFile:
    """A file for download.

    Attributes:
        path: The path, relative to the job's page.
        size: The size, formatted as a text.
    """

    path: str
    size: str


def listed(record: JobRecord) -> tuple[list[ListedFile], bool]:
    """Return at most 500 files for download, and whether the job has more files."""
    found: list[ListedFile] = []
    for name, root in _roots(record).items():
        for path in _below(root):
            if len(found) == MOST:
                return found, True
            below = path.relative_to(root).as_posix() if path != root else ""
            # Skip a file that was removed meanwhile, or whose name a URL cannot contain.
            with contextlib.suppress(OSError, UnicodeEncodeError):
                size = path.lstat().st_size
                below.encode()
                found.append(ListedFile(f"{name}/{below}" if below else name, bytes_text(size)))
    return found, False


def locate(record: JobRecord, path: str) -> Path | None:
    """Return the file for a path from :func:`listed`.

    Return None if the file does not exist or is outside the job's folders.
    """
    for name, root in _roots(record).items():
        if path != name and not path.startswith(f"{name}/"):
            continue
        real = Path(os.path.realpath(root))
        file = Path(os.path.realpath(root / path.removeprefix(name).lstrip("/")))
        if (file == real or real in file.parents) and file.is_file():
            return file
    return None


def _roots(record: JobRecord) -> dict[str, Path]:
    """Return the files and folders for download, by name. The job's request is omitted, because it contains secrets."""
    roots = {saving.FILE: record.path / saving.FILE, "output": record.output_dir}
    checkpoints = checkpoint_folder(record)
    if checkpoints is not None:
        roots["checkpoints"] = checkpoints
    model = outputs.model_data(record)
    file = path_here(model) if model is not None else None
    if file is not None and record.output_dir not in file.parents:
        roots[file.name] = file
    for host in record.hosts:
        roots[f"hosts/{host}/output"] = record.tree(host).output
    return roots


def checkpoint_folder(record: JobRecord) -> Path | None:
    """Return the folder of the job's checkpoints. Return None if the checkpoints are not on this machine."""
    return path_here(outputs.checkpoints(record))


def _below(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path
