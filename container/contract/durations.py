"""Durations as a histogram with buckets of equal relative width; histograms of epochs and ranks can be added.

A duration falls into the bucket ``floor(20 · log2(seconds))``: buckets are 3.5 % wide, so a quantile is off by at most
1.8 %. A training of any length has some hundred buckets at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

_PER_DOUBLING = 20
#: Below this, in seconds, all durations are one.
_SHORTEST = 1e-6


class Durations:
    """A distribution of durations.

    Attributes:
        count: How many.
        total_s: Their sum in seconds.
        longest_s: The longest, in seconds; 0 for none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0
        self._buckets: dict[int, int] = {}

    def __repr__(self) -> str:
        median = self.quantile(0.5)
        if median is None:
            return "Durations(none)"
        return f"Durations({self.count}, median {median * 1e3:.3g} ms, longest {self.longest_s * 1e3:.3g} ms)"

    def add(self, seconds: float, count: int = 1) -> None:
        """Take ``count`` durations of ``seconds`` each."""
        if count <= 0:
            return
        bucket = math.floor(_PER_DOUBLING * math.log2(max(seconds, _SHORTEST)))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self.total_s += seconds * count
        self.longest_s = max(self.longest_s, seconds)

    def quantile(self, share: float) -> float | None:
        """Return the duration that this share of them does not exceed, in seconds; None if there are none.

        Args:
            share: From 0 to 1.
        """
        if not self.count:
            return None
        left = share * self.count
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return min(math.pow(2.0, (bucket + 0.5) / _PER_DOUBLING), self.longest_s)
        return self.longest_s

    @property
    def mean_s(self) -> float | None:
        """The mean in seconds; None for none."""
        return self.total_s / self.count if self.count else None

    def bars(self) -> list[tuple[float, float, int]]:
        """Return ``(from, to, count)`` for each non-empty bucket, in seconds, in order."""
        return [
            (2.0 ** (bucket / _PER_DOUBLING), 2.0 ** ((bucket + 1) / _PER_DOUBLING), self._buckets[bucket])
            for bucket in sorted(self._buckets)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form."""
        return {
            "count": self.count,
            "total_s": round(self.total_s, 6),
            "longest_s": round(self.longest_s, 6),
            "buckets": {str(bucket): count for bucket, count in sorted(self._buckets.items())},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Durations:
        """Read what :meth:`to_dict` gave.

        Raises:
            ValueError: it is something else.
        """
        found = cls()
        try:
            found._buckets = {int(bucket): int(count) for bucket, count in values["buckets"].items()}
            found.count = int(values["count"])
            found.total_s = float(values["total_s"])
            found.longest_s = float(values["longest_s"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not durations: {values!r}") from error
        return found

    @classmethod
    def sum(cls, many: Iterable[Durations]) -> Durations:
        """Add them all up."""
        found = cls()
        for one in many:
            found.count += one.count
            found.total_s += one.total_s
            found.longest_s = max(found.longest_s, one.longest_s)
            for bucket, count in one._buckets.items():
                found._buckets[bucket] = found._buckets.get(bucket, 0) + count
        return found
