"""The notice that this process will be ended soon: SIGTERM, from a stop of the job or a spot interruption.

Without it a script ends at once, as it would anywhere. Whoever listens takes it upon himself to end in time.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from container.contract import events
from container.distributed.tensorflow.hooks import Callback, Logs

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster

#: How a process says that it was told to end.
_TOLD = 128 + signal.SIGTERM


class Notice:
    """Whether the notice has come. A handler of the script's own is called all the same."""

    def __init__(self) -> None:
        self.came = False
        self._previous: Any = None
        self._listening = False
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None] | None = None) -> bool:
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

    def forget(self, listener: Callable[[], None]) -> None:
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
    print(f"told to end: {why}", file=sys.stderr, flush=True)
    raise SystemExit(_TOLD)


def keep_listening() -> None:
    """Listen for SIGTERM from now on, for ``cluster.preempted``: whoever asks once asks again."""


class SaveInTime(Callback):
    """Saves when the notice comes, at the next batch, and ends the script; behind the Checkpointer's callback.

    Rank 0 saves and ends. The other ranks go on until then, as rank 0 cannot finish its step without them, and end
    because it is gone.

    Args:
        cluster: The cluster.
        request: Has the checkpoint's callback save at the next batch.
    """

    def __init__(self, cluster: Cluster, request: Callable[[], None]) -> None:
        self._cluster = cluster
        self._request = request

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Listen."""
        notice.listen(self._told)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """End the training now that everything has been saved."""
        if notice.came and self._cluster.is_chief:
            events.emit("preempted", batch=batch)
            telling_end("saved, and ending")

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Stop listening: the training has ended by itself."""
        notice.forget(self._told)

    def _told(self) -> None:
        self._request()
        if not self._cluster.is_chief:
            sys.excepthook = _say_why


def _say_why(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Print one line in place of a traceback out of the libraries: nothing is wrong."""
    print(f"told to end: rank 0 has ended ({kind.__name__})", file=sys.stderr, flush=True)
