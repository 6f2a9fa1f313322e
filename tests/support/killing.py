"""Work in a process that is killed when it is about to touch a file, after so many times."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STEPS = ("open", "os.mkdir", "os.rename", "os.remove")
_DONE = 7


def killed_at(step: int, home: Path, work: Callable[[], object], *, before: str = "") -> bool:
    """Do something in a process that gets SIGKILL before its so-manieth step within a folder, counted from 0.

    Args:
        step: Which.
        home: The folder.
        work: What to do; with ``before``, it need not return.
        before: A word of a command that it starts at the end, at which it is let go.

    Returns:
        Whether it came so far; else it has done its work.
    """
    child = os.fork()
    if child == 0:
        done = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal done
            if before and event == "subprocess.Popen" and before in arguments[1]:
                os._exit(_DONE)
            if event in _STEPS and str(home) in str(arguments[0]):
                if done == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

        sys.addaudithook(count)
        code = 1
        try:
            work()
            code = _DONE
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (-signal.SIGKILL, _DONE)
    return status == -signal.SIGKILL
