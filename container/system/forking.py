"""Find out whether this process can be forked. A fork does not contain the other threads of the process, and shares the
open files of the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Collection, Mapping
from importlib.machinery import PathFinder


def fork() -> int:
    """Fork this process, and suppress Python's warning about threads.

    The warning is not needed, because :func:`obstacle` detects threads.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def descriptors() -> dict[int, str]:
    """Return the target of each descriptor of this process, by the descriptor's number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
    return found


def obstacle(before: Mapping[int, str], own: Collection[int]) -> str | None:
    """Return the first reason why this process must not be forked. Return None if there is no reason.

    A reason is something that a fork would not copy, such as threads, or would share, such as open files. A script that
    is traced is also a reason.

    Args:
        before: The result of :func:`descriptors` before the modules were imported.
        own: The descriptors that this process itself has opened and that may be shared.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := fork()) == 0:  # a fork makes numerical libraries stop their threads until the next use
        os._exit(0)
    os.waitpid(pid, 0)
    opened = {path for fd, path in descriptors().items() if before.get(fd) != path and fd not in own}
    # the targets of sockets and pipes, such as socket:[123], contain a number, which is omitted
    opened = {path if path.startswith("/") else f"a {path.partition(':')[0]}" for path in opened}
    files = sorted(opened - {"/dev/null", "/dev/urandom"})
    custom = PathFinder.find_spec("sitecustomize")  # a Linux distribution's own sitecustomize is harmless
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
