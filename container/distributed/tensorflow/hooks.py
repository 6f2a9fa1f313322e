"""The base of callbacks that work with tf_keras and with Keras 3.

Ours are no subclasses of either Keras' ``Callback``: they have the methods that both call, so that one class serves
both and nothing of theirs is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

Logs = MutableMapping[str, Any]


class Callback:
    """Every hook that tf_keras and Keras 3 call, doing nothing."""

    #: For tf_keras: whether ``on_*_batch_*`` do anything; parameter servers refuse a callback for which they do.
    batch_hooks = True
    _supports_tf_logs = True
    _chief_worker_only = False
    #: For Keras 3: it calls such callbacks' batch hooks in order and at once only when this is False.
    async_safe = False

    model: Any = None
    params: Mapping[str, Any] = {}

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Keep ``fit``'s parameters."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Keep the model."""
        self.model = model

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """``fit`` begins."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """``fit`` ends."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """An epoch begins."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """An epoch ends."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """A batch begins."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """A batch, or the last of several in one execution, ends."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """A batch of an evaluation ends."""

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Ignore a hook that nothing here uses."""

    on_batch_begin = on_batch_end = _nothing
    on_test_begin = on_test_end = on_test_batch_begin = _nothing
    on_predict_begin = on_predict_end = on_predict_batch_begin = on_predict_batch_end = _nothing

    def _implements_train_batch_hooks(self) -> bool:
        return self.batch_hooks

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
