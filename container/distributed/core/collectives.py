"""Define collective operations on arrays and objects, independent of the library that executes them.

Every method is a collective operation. All ranks must call the same methods in the same order, with values of the same
shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from container.checkpoint.sharing import SavingCluster, SingleProcess

Array = np.ndarray[Any, Any]


class Collectives(SavingCluster, Protocol):
    """The interface of the collective operations. The interface does not depend on the library that executes the
    operations.
    """

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the sum of each array over the ranks."""

    def gather_array(self, array: Array) -> Array:
        """Gather an array from every rank, and return the arrays as one array. Shape: (size, *array.shape)."""


class Alone(SingleProcess):
    """The collective operations of a single process. These operations need no communication."""

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the arrays unchanged, because the sums over one rank are the arrays themselves."""
        return list(arrays)

    def gather_array(self, array: Array) -> Array:
        """Return the array with an additional first dimension of size 1."""
        return array[np.newaxis]
