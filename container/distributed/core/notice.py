"""The notice that this process will be ended soon: SIGTERM, from a stop of the job or a spot interruption.

Without it a script ends at once, as it would anywhere. Whoever listens takes it upon himself to end in time.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

#: What is called when something has happened.
Listener = Callable[[], None]

#: How a process says that it was told to end.
_TOLD = 128 + signal.SIGTERM


class Notice:
    """Whether the notice has come. A handler of the script's own is called all the same."""

    def __init__(self) -> None:
        self.came = False
        self._previous: Any = None
        self._listening = False
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener | None = None) -> bool:
        """Take the signal from now on.

        Args:
            listener: Called in the signal's handler: it may only set something.

        Returns:
            Whether it can be taken: Python does so in the main thread only.
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
        """Call a listener no more; the signal does again what it did before when that was the last one."""
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


#: This process's.
notice = Notice()


def telling_end(why: str) -> NoReturn:
    """End the script, as it was told to.

    Raises:
        SystemExit: always.
    """
    print(f"stopping after SIGTERM: {why}", file=sys.stderr, flush=True)
    raise SystemExit(_TOLD)


def keep_listening() -> None:
    """Listen for SIGTERM from now on, for ``cluster.preempted``: whoever asks once asks again."""
