"""Keeps the events of a job within bounds: of very many values of metrics, evenly distributed ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from container.contract.wire import Event

#: So many values of all metrics together are kept.
MOST_VALUES = 50_000
#: So many values of one metric of one rank are kept at least, however many metrics there are.
_LEAST_VALUES = 16


class _Series:
    """The values of one metric of one rank: every so many-th of them, and the last."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, Event]] = []
        self.stride = 1
        self.count = 0
        self.last: tuple[int, Event] | None = None

    def add(self, place: int, event: Event) -> int:
        """Take a value; returns how many more are kept."""
        self.last = (place, event)
        self.count += 1
        if (self.count - 1) % self.stride:
            return 0
        self.kept.append(self.last)
        return 1

    def shrink(self, limit: int) -> int:
        """Keep no more than so many; returns how many fewer there are."""
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
    """All events, but for values of metrics beyond a bound.

    The first and the last value of each metric of each rank in each attempt are always kept, and those of metrics with
    few values whole.

    Args:
        events: In their order; they are looked at one by one, so that they need not fit into memory.
        most: How many values are kept.

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
