"""Save disk space after a job has ended: replace the hosts' copies of the code by hard links to the record's copy."""

from __future__ import annotations

import contextlib
import filecmp
import os
import stat
from pathlib import Path

from container.toolkit.code.code import SHARING
from estimators.records.record import JobRecord


def share_code(record: JobRecord) -> None:
    """Replace the hosts' copies of source files by links to the files in the record. Files that a script has changed
    are not replaced.

    If the job is resumed, the new attempt replaces the links by copies (:func:`container.toolkit.code.code.unshare`).
    The process may be killed at any moment without harm.
    """
    source = record.source_dir
    copies = list(record.path.glob("hosts/*/ml/code"))
    for folder, _, names in os.walk(source) if copies else ():
        for name in names:
            kept = Path(folder, name)
            for code in copies:
                with contextlib.suppress(OSError):  # on an error the copy stays
                    _share(kept, code / kept.relative_to(source))


def _share(kept: Path, copy: Path) -> None:
    if os.path.realpath(copy.parent) != os.fspath(copy.parent):
        return  # the script has replaced a folder by a link
    one, other = os.lstat(kept), os.lstat(copy)
    if not (stat.S_ISREG(one.st_mode) and stat.S_ISREG(other.st_mode)) or one.st_ino == other.st_ino:
        return
    if (one.st_size, one.st_mode & 0o100, one.st_uid) != (other.st_size, other.st_mode & 0o100, other.st_uid):
        return
    if filecmp.cmp(kept, copy, shallow=False):
        link = copy.with_name(f"{SHARING}{os.urandom(16).hex()}")
        os.link(kept, link)
        os.replace(link, copy)
