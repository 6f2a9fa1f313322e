"""Handle SIGTERM, which announces that this process will be terminated soon.

A process receives SIGTERM when the job is stopped, or when a spot host is interrupted.

Without a listener, SIGTERM terminates a script at once. A script with a listener must exit by itself before the process
is killed.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

#: A function that is called when this process receives SIGTERM.
Listener = Callable[[], None]

#: Exit code of a process that was terminated by SIGTERM.
_TOLD = 128 + signal.SIGTERM


class Notice:
    """A handler of SIGTERM that sets a flag and calls listeners.

    SIGTERM announces that this process will be terminated soon. If the script has installed its own handler of SIGTERM
    before, the script's handler is called after the listeners.
    """

    def __init__(self) -> None:
        self.came = False
        self._previous: Any = None
        self._listening = False
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener | None = None) -> bool:
        """Add a listener. Install the handler of SIGTERM if it is not installed yet.

        Args:
            listener: A function that the signal handler calls, or None to add no listener. The function must return
                quickly. For example, it may set a flag.

        Returns:
            Whether the handler is installed. Python can install signal handlers only in the main thread.
        """
        if not self._listening:
            if threading.current_thread() is not threading.main_thread():
                return False
            self._previous = signal.signal(signal.SIGTERM, self._on_term)
            self._listening = True
        if listener is not None and listener not in self._listeners:
            self._listeners.append(listener)
        return True

    def forget(self, listener: Listener) -> None:
        """Remove a listener.

        When the last listener has been removed, the previous handler of SIGTERM is restored. If SIGTERM has been
        received, the handler stays installed.
        """
        if listener in self._listeners:
            self._listeners.remove(listener)
        mine = signal.getsignal(signal.SIGTERM) == self._on_term
        if not self._listeners and not self.came and self._listening and mine:
            signal.signal(signal.SIGTERM, self._previous)
            self._listening = False

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        for listener in self._listeners:
            listener()
        if callable(self._previous):
            self._previous(number, frame)


#: The :class:`Notice` object of this process.
notice = Notice()


def telling_end(why: str) -> NoReturn:
    """Print the reason, and exit with the exit code of a process that SIGTERM has terminated.

    Raises:
        SystemExit: always.
    """
    print(f"stopping after SIGTERM: {why}", file=sys.stderr, flush=True)
    raise SystemExit(_TOLD)


def keep_listening() -> None:
    """Do nothing when SIGTERM is received.

    ``cluster.preempted`` registers this function as a listener. As long as a listener is registered, SIGTERM does not
    terminate the script, so that the script can read ``cluster.preempted`` in each step.
    """
