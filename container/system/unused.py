"""Find folders that remain on this machine after jobs were killed. ``/proc`` shows which folders are still used.

Only folders that fleetfit has created for sockets and session files are examined. See :mod:`container.system.folders`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from container.system import folders
from container.system.files import names_in

#: A folder that was modified within this number of seconds may belong to a process that has just started.
_SETTLED_S = 60.0


def unused_folders(now: float | None = None) -> list[Path]:
    """Return the folders for sockets and session files that no process uses any more."""
    when = time.time() if now is None else now
    candidates: list[Path] = []
    roots = dict.fromkeys((tempfile.gettempdir(), folders.root(), folders.SHARED_MEMORY))
    # Paths are created only for names that may be fleetfit's, because there may be thousands of other entries.
    names = ((root, name) for root in roots for name in names_in(root) if name.startswith(folders.PREFIX))
    for path in (Path(root) / name for root, name in names):
        with contextlib.suppress(OSError):
            stat = path.lstat()
            # Only private folders of this user: any program may create a folder of that name.
            private = stat.st_uid == os.getuid() and stat.st_mode & 0o077 == 0
            ours = path.is_dir() and not path.is_symlink() and private and folders.is_abandoned(path)
            if ours and untouched(path, when):
                candidates.append(path)
    if not candidates:
        return []
    signs = {path: _sign(path) for path in candidates}
    used = _used_folders(set(signs.values()))
    return [path for path in candidates if signs[path] not in used]


def _sign(path: Path) -> str:
    """Return the text to search for in the environment and the open files of processes that may use a folder.

    The text is the folder's path. For a folder in shared memory, the text is the name of the job's private folder.
    """
    match = folders.NAME.match(path.name)
    return f"/{match[0]}" if match and str(path.parent) == folders.SHARED_MEMORY else str(path)


def _used_folders(folders: set[str]) -> set[str]:
    """Return the texts whose folders are still used. Each text stands for one folder (see :func:`_sign`).

    A folder is used if its text is in the environment, the command line, the working directory or the open files of
    another process of this user, or in the path of a bound unix socket.
    """
    used: set[str] = set()
    for pid in own_processes():
        if pid == os.getpid():
            continue
        texts = [read_proc(pid, "environ"), read_proc(pid, "cmdline"), read_proc_link(pid, "cwd")]
        with contextlib.suppress(OSError):
            texts += [read_proc_link(pid, f"fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        for text in texts:
            used.update(folder for folder in folders - used if folder in text)
    # The kernel lists the paths of all bound unix sockets in this file, also of sockets of other users' processes.
    with contextlib.suppress(OSError):
        sockets = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
        used.update(folder for folder in folders - used if folder in sockets)
    return used


def untouched(path: Path, now: float) -> bool:
    try:
        return now - path.stat().st_mtime > _SETTLED_S
    except OSError:
        return False


def own_processes() -> Sequence[int]:
    uid = os.getuid()
    pids: list[int] = []
    for name in names_in(Path("/proc")):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    pids.append(int(name))
    return pids


def read_proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def read_proc_link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""
