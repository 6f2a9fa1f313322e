"""Store durations in a histogram with buckets of equal relative width. Histograms of several epochs and ranks can be
added.

A duration belongs to the bucket ``floor(20 · log2(seconds))``. A bucket's upper limit is 3.5 % above its lower limit.
Therefore a quantile is off by at most 1.8 %. Even a long training has only some hundred buckets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

_PER_DOUBLING = 20
#: The shortest duration in seconds. Shorter durations are counted in the bucket of this duration.
_SHORTEST = 1e-6


class Durations:
    """A distribution of durations.

    Attributes:
        count: Number of durations.
        total_s: Sum of the durations in seconds.
        longest_s: The longest duration in seconds. 0 if there are no durations.
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
        """Add ``count`` durations of ``seconds`` each."""
        if count <= 0:
            return
        bucket = math.floor(_PER_DOUBLING * math.log2(max(seconds, _SHORTEST)))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self.total_s += seconds * count
        self.longest_s = max(self.longest_s, seconds)

    def quantile(self, share: float) -> float | None:
        """Return a quantile of the durations, in seconds. Return None if there are no durations.

        Args:
            share: The fraction of the durations that do not exceed the quantile, from 0 to 1 (0.5 for the median).
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
        """Return the mean duration in seconds. Return None if there are no durations."""
        return self.total_s / self.count if self.count else None

    def bars(self) -> list[tuple[float, float, int]]:
        """Return ``(lower limit, upper limit, count)`` for each non-empty bucket, in ascending order. The limits are in
        seconds.
        """
        return [
            (2.0 ** (bucket / _PER_DOUBLING), 2.0 ** ((bucket + 1) / _PER_DOUBLING), self._buckets[bucket])
            for bucket in sorted(self._buckets)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the histogram as a JSON-serialisable dict."""
        return {
            "count": self.count,
            "total_s": round(self.total_s, 6),
            "longest_s": round(self.longest_s, 6),
            "buckets": {str(bucket): count for bucket, count in sorted(self._buckets.items())},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Durations:
        """Create a histogram from the result of :meth:`to_dict`.

        Raises:
            ValueError: ``values`` is not a result of :meth:`to_dict`.
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
        """Return a histogram of the durations of all given histograms."""
        found = cls()
        for one in many:
            found.count += one.count
            found.total_s += one.total_s
            found.longest_s = max(found.longest_s, one.longest_s)
            for bucket, count in one._buckets.items():
                found._buckets[bucket] = found._buckets.get(bucket, 0) + count
        return found
