"""Define collective operations on arrays and objects, independent of the library that executes them.

Every method is a collective operation. All ranks must call the same methods in the same order, with values of the same
shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
Value = TypeVar("Value")


class Collectives(Protocol):
    """The interface of the collective operations. The interface does not depend on the library that executes the
    operations.
    """

    @property
    def rank(self) -> int:
        """Return this process's rank."""

    @property
    def size(self) -> int:
        """Return the number of ranks. With elastic Horovod, the number can change."""

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the sum of each array over the ranks."""

    def gather_array(self, array: Array) -> Array:
        """Gather an array from every rank, and return the arrays as one array. Shape: (size, *array.shape)."""

    def broadcast_object(self, value: Value) -> Value:
        """Return rank 0's value on every rank. The values of the other ranks are ignored."""

    def barrier(self) -> None:
        """Wait until every rank has called this method."""


class Alone:
    """The collective operations of a single process. These operations need no communication."""

    rank = 0
    size = 1

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the arrays unchanged, because the sums over one rank are the arrays themselves."""
        return list(arrays)

    def gather_array(self, array: Array) -> Array:
        """Return the array with an additional first dimension of size 1."""
        return array[np.newaxis]

    def broadcast_object(self, value: Value) -> Value:
        """Return the value unchanged."""
        return value

    def barrier(self) -> None:
        """Return at once, because there are no other ranks."""
