"""What a process has from its parent, beside its environment: taken down in one process, and taken over by another."""

from __future__ import annotations

import contextlib
import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")


def traits() -> dict[str, Any]:
    """Return what no other process can take over."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        groups = file.read()
    return {
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "users": [*os.getresuid(), *os.getresgid()],
        "groups": groups,
        "namespaces": [os.readlink(f"/proc/self/ns/{kind}") for kind in _NAMESPACES],
    }


def taken_down() -> dict[str, Any]:
    """Return what another process is to take over, and the traits that it must have."""
    mask = os.umask(0)
    os.umask(mask)
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        score = file.read().strip()
    return {
        "traits": traits(),
        "cwd": os.getcwd(),
        "umask": mask,
        "oom_score_adj": score,
        "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
    }


def difference(theirs: Mapping[str, Any]) -> str | None:
    """Return why this process, or a fork, cannot take over what was taken down in another; None if it can."""
    if theirs["traits"] != traits():
        return "its cores, priority, user, control groups or namespaces differ"
    if any(_most(most) > _most(resource.getrlimit(number)[1]) for number, _, most in theirs["limits"]):
        return "its resource limits are higher"
    return None


def _most(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def take_over(theirs: Mapping[str, Any]) -> None:
    """Take over what was taken down in another process."""
    os.chdir(theirs["cwd"])
    os.umask(theirs["umask"])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(theirs["oom_score_adj"])
    for number, soft, most in theirs["limits"]:
        if resource.getrlimit(number) != (soft, most):
            resource.setrlimit(number, (soft, most))
