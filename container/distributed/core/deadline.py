"""Terminate a process that waits too long for other processes.

The process waits in native code, which an exception cannot interrupt.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator

from container.contract import events

#: How many seconds after the deadline Python's fault handler terminates a process in which native code holds the GIL.
_LAST_RESORT = 3.0


@contextlib.contextmanager
def deadline(timeout: float, describe: Callable[[], str]) -> Iterator[None]:
    """Terminate the process if the block exceeds a time limit. An exception cannot be used instead, because it cannot
    interrupt native code.

    Args:
        timeout: Time limit in seconds.
        describe: Returns a text that names the missing processes.
    """
    over = threading.Event()

    def watch() -> None:
        if over.wait(timeout):
            return
        text = f"container.distributed: the processes did not meet within {timeout:g} s: {describe()}."
        if not over.is_set():
            events.emit("exception", pid=os.getpid(), type="DistributedError", message=text, traceback=text)
            print(text, file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    # The thread cannot run while native code holds the GIL.
    faulthandler.dump_traceback_later(timeout + _LAST_RESORT, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        over.set()
