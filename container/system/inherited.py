"""Compare the properties that two processes have inherited besides their environment, and take over some of them.

An importer, which is a process that imports a script's packages and then forks ranks, uses this module. A process that
is forked from the importer replaces a process that mpirun or a host's toolkit has started, and must have the same
properties as the replaced process.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Any

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")


def traits(pid: int) -> dict[str, Any]:
    """Return the properties of a process that a different process cannot take over with :func:`take_over`."""
    status = _status(pid)
    return {
        "cores": sorted(os.sched_getaffinity(pid)),
        "priorities": os.getpriority(os.PRIO_PROCESS, pid),
        "users": [status[name] for name in ("Uid", "Gid", "Groups")],
        "control groups": Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"),
        "namespaces": [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in _NAMESPACES],
        "hard limits": [resource.prlimit(pid, number)[1] for number in _LIMITS],
    }


def difference(pid: int) -> str | None:
    """Return the first property (see :func:`traits`) in which a process differs from this process, as an error message.
    Return None if all these properties are equal.

    Because of such a difference, a fork of this process cannot replace the other process.
    """
    own = traits(os.getpid())
    return next((f"its {name} differ" for name, theirs in traits(pid).items() if theirs != own[name]), None)


def take_over(pid: int) -> None:
    """Give this process the working folder, the umask, the limits and the out-of-memory score of another process."""
    os.chdir(f"/proc/{pid}/cwd")
    os.umask(int(_status(pid)["Umask"], 8))
    score = Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii")
    with contextlib.suppress(OSError):  # /proc is read-only, or a lower value is not allowed
        Path("/proc/self/oom_score_adj").write_text(score, encoding="ascii")
    for number in _LIMITS:
        theirs = resource.prlimit(pid, number)
        if resource.getrlimit(number) != theirs:  # the kernel may refuse to set a limit even to its current value
            resource.setrlimit(number, theirs)


def _status(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return dict(line.split(":", 1) for line in text.splitlines())
