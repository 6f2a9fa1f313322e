"""Collective operations on arrays and objects, whichever library does them.

Every method is a common act: all ranks must call it, in the same order, with values of the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
Value = TypeVar("Value")


class Collectives(Protocol):
    """The interface of the collective operations."""

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def size(self) -> int:
        """The number of ranks; under elastic Horovod it changes."""

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Add up arrays over the ranks."""

    def gather_array(self, array: Array) -> Array:
        """Stack an array of every rank. Shape: (size, *array.shape)."""

    def broadcast_object(self, value: Value) -> Value:
        """Give every rank rank 0's value; what the others pass is not looked at."""

    def barrier(self) -> None:
        """Wait until every rank has come here."""


class Alone:
    """A single process, for which every collective operation is trivial."""

    rank = 0
    size = 1

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`Collectives`."""
        return list(arrays)

    def gather_array(self, array: Array) -> Array:
        """See :class:`Collectives`."""
        return array[np.newaxis]

    def broadcast_object(self, value: Value) -> Value:
        """See :class:`Collectives`."""
        return value

    def barrier(self) -> None:
        """See :class:`Collectives`."""
