"""Tell all ranks of rank 0's host updates, by a flag that travels with the gradients.

A message of its own would cost each of them a wait for the others, at every look. A number that is
reduced together with a step's gradients costs nothing to speak of, and all ranks have it after the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: That no step was made yet; what is reduced is 0 or more.
_NOTHING = -1.0


class HostUpdates:
    """The flag: whether rank 0 knows of host updates.

    TensorFlow's devices begin with its first variable, and a script may still configure them: see :meth:`prepare`.
    """

    def __init__(self) -> None:
        self._ours: Any = None
        self._received: Any = None

    def prepare(self) -> None:
        """Make what the other methods need; outside of a ``tf.function``. May be called again."""
        if self._ours is not None:
            return
        import tensorflow as tf

        self._ours = tf.Variable(0.0, dtype=tf.float32, trainable=False, name="host_updates_ours")
        # What came; each operation of a step takes its time, so there is no other that counts them.
        self._received = tf.Variable(_NOTHING, dtype=tf.float32, trainable=False, name="host_updates_received")

    def send(self) -> None:
        """Send it to all ranks with the next step; only rank 0 calls this."""
        self._ours.assign(1.0)

    def look(self) -> bool | None:
        """Return whether hosts have changed, as of the last step; None if no gradients were reduced since
        :meth:`forget`.
        """
        came = float(self._received.numpy())
        return None if came == _NOTHING else came > 0

    def forget(self) -> None:
        """Reset, once every rank knows."""
        self._ours.assign(0.0)
        self._received.assign(_NOTHING)

    def reduce_with(self, reduce: Callable[[Any], Any], *, after: Any) -> None:
        """Reduce it with a step's gradients, within or outside a ``tf.function``.

        Args:
            reduce: Adds up (or averages) a tensor over the ranks.
            after: A gradient: what is ready when that is can go in one message with it.
        """
        import tensorflow as tf

        with tf.control_dependencies([after]):
            ours = tf.identity(self._ours)
        self._received.assign(reduce(ours))
