"""Inform all ranks when rank 0 has learned that hosts join or leave. To this end, a flag is sent with the gradients.

If the flag were sent in a separate message, each rank would have to wait for the other ranks at every check. A number
that is reduced together with a step's gradients takes almost no time, and all ranks receive the number in the same
step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Value before the first step; the reduced flag is 0 or more.
_NOTHING = -1.0


class HostUpdates:
    """The flag that tells all ranks whether hosts have joined or will leave soon.

    Creating the first TensorFlow variable initializes the devices, which a script may still have to configure.
    Therefore :meth:`prepare` creates the variables, and the constructor does not.
    """

    def __init__(self) -> None:
        self._ours: Any = None
        self._received: Any = None

    def prepare(self) -> None:
        """Create the TensorFlow variables that the other methods use.

        This method must be called outside of a ``tf.function``. Calling this method again has no effect.
        """
        if self._ours is not None:
            return
        import tensorflow as tf

        self._ours = tf.Variable(0.0, dtype=tf.float32, trainable=False, name="host_updates_ours")
        # The received flag. Each operation in a step takes time, so there is no separate counter of received flags.
        self._received = tf.Variable(_NOTHING, dtype=tf.float32, trainable=False, name="host_updates_received")

    def send(self) -> None:
        """Set the flag. The flag is sent to all ranks with the gradients of the next step. Only rank 0 calls this
        method.
        """
        self._ours.assign(1.0)

    def look(self) -> bool | None:
        """Return whether the flag that this rank received with the last step's gradients is set.

        Return None if no gradients were reduced since the last call of :meth:`forget`.
        """
        came = float(self._received.numpy())
        return None if came == _NOTHING else came > 0

    def forget(self) -> None:
        """Reset the flag. Call this method when every rank has received the flag."""
        self._ours.assign(0.0)
        self._received.assign(_NOTHING)

    def reduce_with(self, reduce: Callable[[Any], Any], *, after: Any) -> None:
        """Reduce the flag together with a step's gradients, within or outside a ``tf.function``.

        Args:
            reduce: Returns the sum or the average of a tensor over the ranks.
            after: A gradient. The flag becomes ready at the same time as this gradient, so that the flag and the
                gradient can be sent in one message.
        """
        import tensorflow as tf

        with tf.control_dependencies([after]):
            ours = tf.identity(self._ours)
        self._received.assign(reduce(ours))
