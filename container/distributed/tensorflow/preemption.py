"""Save and end in time when this process is told that it will be ended soon."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from container.contract import events
from container.distributed.core.notice import Listener, notice, telling_end
from container.distributed.tensorflow.hooks import Callback, Logs

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster


class SaveInTime(Callback):
    """Saves when the notice comes, at the next batch, and ends the script; behind the Checkpointer's callback.

    Rank 0 saves and ends. The other ranks go on until then, as rank 0 cannot finish its step without them, and end
    because it is gone.

    Args:
        cluster: The cluster.
        request: Has the checkpoint's callback save at the next batch.
    """

    def __init__(self, cluster: Cluster, request: Listener) -> None:
        self._cluster = cluster
        self._request = request

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Listen."""
        notice.listen(self._told)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """End the training now that everything has been saved."""
        if notice.came and self._cluster.is_chief:
            events.emit("preempted", batch=batch)
            telling_end("the training is saved")

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Stop listening: the training has ended by itself."""
        notice.forget(self._told)

    def _told(self) -> None:
        self._request()
        if not self._cluster.is_chief:
            sys.excepthook = _say_why


def _say_why(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Print one line in place of a traceback out of the libraries: nothing is wrong."""
    print(f"stopping after SIGTERM: rank 0 has ended ({kind.__name__})", file=sys.stderr, flush=True)
