"""End a program without the interpreter's tear-down of its modules."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program's main function, and end the process with the exit code that the function returns.

    The interpreter waits for threads, and runs the functions that ``main`` has registered with ``atexit``. Then the
    process ends at once. Files that are still open are not flushed, except for standard output and standard error. Use
    this function only for programs that run no code of users. The tear-down of all modules would take a tenth or more
    of a short program's processor time.

    If ``main`` raises an exception, the process ends as always.
    """
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, so that atexit calls this function last
    codes.append(main())
    sys.exit(codes[0])


def _leave(codes: list[int]) -> None:
    if not codes:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter reports it
    os._exit(codes[0])
