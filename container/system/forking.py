"""Whether a process can be forked: what a fork would not copy, or would share."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Collection, Mapping
from importlib.machinery import PathFinder


def fork() -> int:
    """Fork this process, without Python's warning of threads: :func:`obstacle` looks for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def descriptors() -> dict[int, str]:
    """Return the descriptors of this process, and what they are of."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one by which they were listed
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
    return found


def obstacle(before: Mapping[int, str], own: Collection[int]) -> str | None:
    """Return what a module has done that a fork would not copy, or would share; None if there is nothing.

    Args:
        before: The descriptors before the modules were imported.
        own: Descriptors that are known, and may be shared.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := fork()) == 0:  # for which numerical libraries end their threads, until these are needed again
        os._exit(0)
    os.waitpid(pid, 0)
    opened = {path for fd, path in descriptors().items() if before.get(fd) != path and fd not in own}
    opened = {path if path.startswith("/") else f"a {path.partition(':')[0]}" for path in opened}  # many have numbers
    files = sorted(opened - {"/dev/null", "/dev/urandom"})
    custom = PathFinder.find_spec("sitecustomize")  # a distribution's own only looks for a reporter of crashes
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        reasons = {
            "a module starts threads when it is imported": len(os.listdir("/proc/self/task")) > 1,
            "a module starts processes when it is imported": children.read(),
            "a module sets a timer when it is imported": any(any(signal.getitimer(timer)) for timer in range(3)),
            f"a module opens {''.join(files[:1])} when it is imported": files,
            "the script is traced": sys.gettrace() or sys.getprofile() or "coverage" in sys.modules,
            "there is a sitecustomize": custom and os.path.dirname(custom.origin or "") != os.path.dirname(os.__file__),
        }
    return next((reason for reason, there in reasons.items() if there), None)
