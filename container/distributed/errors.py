"""What can go wrong between the processes of a cluster.

* ``DistributedError`` (``RuntimeError``)

  * ``RefusedError`` - what this strategy, or this strategy with this Keras, cannot do
  * ``WeightsDifferError`` - ranks of a synchronous strategy train apart
"""

from __future__ import annotations


class DistributedError(RuntimeError):
    """The processes cannot train together; the message says why and what to do."""


class RefusedError(DistributedError):
    """What was asked for does not work with this strategy or this Keras, and would not have worked silently."""


class WeightsDifferError(DistributedError):
    """The weights of the ranks, which a synchronous strategy keeps equal, are not."""
