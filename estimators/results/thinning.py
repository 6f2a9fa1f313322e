"""Limits the events of a job: of very many metric values, keeps evenly distributed ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from container.contract.wire import Event

#: #: The number of values of all metrics together that are kept.
MOST_VALUES = 50_000
#: #: The number of values of one metric of one rank that are kept at least, however many metrics exist.
_LEAST_VALUES = 16


class _Series:
    """The values of one metric of one rank: every n-th of them, and the last."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, Event]] = []
        self.stride = 1
        self.count = 0
        self.last: tuple[int, Event] | None = None

    def add(self, place: int, event: Event) -> int:
        """Add a value; return by how many the kept values have grown."""
        self.last = (place, event)
        self.count += 1
        if (self.count - 1) % self.stride:
            return 0
        self.kept.append(self.last)
        return 1

    def shrink(self, limit: int) -> int:
        """Keep at most ``limit`` values; return by how many the kept values have shrunk."""
        before = len(self.kept)
        while len(self.kept) > limit:
            self.kept = self.kept[::2]
            self.stride *= 2
        return before - len(self.kept)

    def values(self) -> list[tuple[int, Event]]:
        if self.last is not None and self.kept[-1] != self.last:
            return [*self.kept, self.last]
        return self.kept


def thin(events: Iterable[Event], most: int = MOST_VALUES) -> tuple[list[Event], int]:
    """Return all events, but only a limited number of metric values.

    The first and the last value of each metric of each rank in each attempt are always kept. Metrics with few values
    are kept completely.

    Args:
        events: The events in their order; they are read one by one, so they need not fit into memory.
        most: The number of values to keep.

    Returns:
        The events in their order, and how many values were left out.
    """
    others: list[tuple[int, Event]] = []
    series: dict[tuple[int, int | None, str, str], _Series] = {}
    total, limit = 0, most
    for place, event in enumerate(events):
        if event.kind != "metric":
            others.append((place, event))
            continue
        key = (event.attempt, event.rank, event.host, str(event.data.get("name")))
        one = series.get(key)
        if one is None:
            one = series[key] = _Series()
        total += one.add(place, event)
        while total > most and limit > _LEAST_VALUES:
            limit //= 2
            total -= sum(each.shrink(limit) for each in series.values())
    kept = [pair for each in series.values() for pair in each.values()]
    left_out = sum(each.count for each in series.values()) - len(kept)
    return [event for _, event in sorted([*others, *kept], key=lambda pair: pair[0])], left_out
