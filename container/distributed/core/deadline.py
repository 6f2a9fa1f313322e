"""End a process that waits for others in native code, which no exception reaches."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator

from container.contract import events

#: How long after the deadline Python's own watch ends a process that holds Python's lock, in seconds.
_LAST_RESORT = 3.0


@contextlib.contextmanager
def deadline(timeout: float, describe: Callable[[], str]) -> Iterator[None]:
    """End the process when the block takes too long: it waits in native code, which no exception reaches.

    Args:
        timeout: In seconds.
        describe: Says who is missing.
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
    # The thread cannot run while native code holds Python's lock.
    faulthandler.dump_traceback_later(timeout + _LAST_RESORT, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        over.set()
