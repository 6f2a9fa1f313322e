"""Define the base class of callbacks that work with tf_keras and with Keras 3.

This base class is not a subclass of the ``Callback`` class of tf_keras or Keras 3, but has all methods that these two
packages call. Therefore one class works with both packages, and this module imports neither of them.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

Logs = MutableMapping[str, Any]


class KerasCallback:
    """A base class of callbacks with all methods that tf_keras and Keras 3 call. By default, each method does
    nothing.
    """

    #: For tf_keras: whether the hooks ``on_*_batch_*`` do anything. With parameter servers, tf_keras refuses callbacks
    #: with such hooks.
    batch_hooks = True
    _supports_tf_logs = True
    _chief_worker_only = False
    #: For Keras 3: False, so that Keras calls the batch hooks in order and without delay.
    async_safe = False

    model: Any = None
    params: Mapping[str, Any] = {}

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Store ``fit``'s parameters."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Store the model."""
        self.model = model

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Handle the beginning of ``fit``."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Handle the end of ``fit``."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Handle the beginning of an epoch."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Handle the end of an epoch."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Handle the beginning of a batch."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Handle the end of a batch. If one execution has several batches, handle the end of the last batch."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Handle the end of a batch of an evaluation."""

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing. This method is used for the hooks that fleetfit's callbacks do not need."""

    on_batch_begin = on_batch_end = _nothing
    on_test_begin = on_test_end = on_test_batch_begin = _nothing
    on_predict_begin = on_predict_end = on_predict_batch_begin = on_predict_batch_end = _nothing

    def _implements_train_batch_hooks(self) -> bool:
        return self.batch_hooks

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
