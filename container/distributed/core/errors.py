"""What can go wrong between the processes of a cluster.

* ``DistributedError`` (``RuntimeError``)

  * ``RefusedError`` - what this strategy, or this strategy with this Keras, cannot do
  * ``WeightsDifferError`` - ranks of a synchronous strategy train apart
"""

from __future__ import annotations

from container.contract.errors import DistributedError, RefusedError

__all__ = ["DistributedError", "RefusedError", "WeightsDifferError"]


class WeightsDifferError(DistributedError):
    """The weights of the ranks, which a synchronous strategy keeps equal, are not."""
