"""Save the training and exit the script in time if SIGTERM announces that the process will be terminated soon."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from container.checkpoint.keras_callback import KerasCallback, Logs
from container.contract import events
from container.distributed.core.notice import Listener, notice, telling_end

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster


class SaveInTime(KerasCallback):
    """A callback that requests a save after SIGTERM, and exits the script when the training is saved. This callback
    must follow the Checkpointer's callback in the list.

    Rank 0 saves and exits. Until then, the other ranks must continue, because rank 0 cannot finish its step without the
    other ranks. The other ranks exit when they lose the connection to rank 0.

    Args:
        cluster: The cluster.
        request: Requests that the Checkpointer's callback saves at the next batch.
    """

    def __init__(self, cluster: Cluster, request: Listener) -> None:
        self._cluster = cluster
        self._request = request

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Install the handler of SIGTERM when the training begins."""
        notice.listen(self._told)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Exit the script on rank 0 if SIGTERM was received. The Checkpointer's callback has already saved the
        training.
        """
        if notice.came and self._cluster.is_chief:
            events.emit("preempted", batch=batch)
            telling_end("the training is saved")

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Stop handling SIGTERM when the training has ended normally."""
        notice.forget(self._told)

    def _told(self) -> None:
        self._request()
        if not self._cluster.is_chief:
            sys.excepthook = _say_why


def _say_why(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Print one line instead of an exception's traceback. This exception hook is installed after SIGTERM, when the loss
    of rank 0 is not an error.
    """
    print(f"stopping after SIGTERM: rank 0 has ended ({kind.__name__})", file=sys.stderr, flush=True)
