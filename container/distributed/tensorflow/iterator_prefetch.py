"""Make the iterators of epochs before they are asked for.

TensorFlow makes the functions of a pipeline anew for each iterator, which takes longer than to read a small epoch. So
the iterator of the next epoch is made while the present one is trained on.

An iterator that has only been made has not begun: no FIFO is opened, no epoch is counted and none of Python's functions
is called before it is asked for its first element. So one that is not used costs nothing but its making: an epoch that
a restored checkpoint asks for is begun by whichever iterator comes next, and at the end of the process there is nothing
to wait for but the milliseconds that the making takes. (It must not read ahead too: then it would hold a FIFO that may
never be fed, and threads of TensorFlow's that need Python, which at the end is not there any more.)
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from typing import Any

import tensorflow as tf


class EpochsAhead(tf.data.Dataset):
    """A dataset that makes its next iterator, in a thread, when one is taken.

    Only iterators that are made in Python, as by ``fit``, are made so. Datasets that are made of this one are made of
    the one it is made of.

    Args:
        epochs: Each of its iterators reads the next epoch, and reads nothing before it is asked to.
        batches: The batches of a whole epoch; None where that is not known.
    """

    def __init__(self, epochs: Any, batches: int | None = None) -> None:
        self._epochs = epochs
        self._lock = threading.Lock()
        self._ahead: Future[Any] | None = None
        # Keras asks for the number, and makes an epoch of so many steps. It is never an iterator of this one that it
        # trains on: the rest of an epoch has fewer, of which TensorFlow would make an error.
        known = epochs if batches is None else epochs.apply(tf.data.experimental.assert_cardinality(batches))
        super().__init__(known._variant_tensor)

    @property
    def element_spec(self) -> Any:
        """As of the epochs."""
        return self._epochs.element_spec

    def _inputs(self) -> list[Any]:
        return [self._epochs]

    def __iter__(self) -> Any:
        """Yield the next epoch."""
        if not tf.executing_eagerly():
            return super().__iter__()
        with self._lock:
            ahead, self._ahead = self._ahead, None
            # Before the next one: what draws a new order for each iterator gives them in this order.
            found = iter(self._epochs) if ahead is None else ahead.result()
            coming: Future[Any] = Future()
            with contextlib.suppress(RuntimeError):  # no thread can be had: it is made when it is asked for
                # Not a daemon: Python waits for it at the end, while all that it uses is still there.
                threading.Thread(target=_make, args=(self._epochs, coming), name="next epoch").start()
                self._ahead = coming
        return found


def _make(epochs: Any, ahead: Future[Any]) -> None:
    try:
        ahead.set_result(iter(epochs))
    except BaseException as error:  # noqa: BLE001 - raised where the epoch is asked for
        ahead.set_exception(error)
