"""Limit the number of a job's events.

If there are too many metric values, only values at even intervals are kept. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from container.contract.wire import Event

#: The maximum number of values that are kept, for all metrics together.
MOST_VALUES = 50_000
#: Even if there are many metrics, at least this many values of each metric of each rank are kept.
_LEAST_VALUES = 16


class _Series:
    """The values that one rank reported for one metric in one attempt. Every n-th value and the last value are kept."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, Event]] = []
        self.stride = 1
        self.count = 0
        self.last: tuple[int, Event] | None = None

    def add(self, place: int, event: Event) -> int:
        """Count a value, and remember it as the last value. If it is an n-th value, also add it to the kept values.

        Args:
            place: The position of the event among all events.
            event: The event with the value.

        Returns:
            1 if the value is an n-th value. Otherwise 0.
        """
        self.last = (place, event)
        self.count += 1
        if (self.count - 1) % self.stride:
            return 0
        self.kept.append(self.last)
        return 1

    def shrink(self, limit: int) -> int:
        """Double the interval n until at most ``limit`` of the n-th values are kept.

        Returns:
            The number of values that are no longer kept.
        """
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
    """Limit the number of metric values in a job's events to about ``most`` values. Other events are kept.

    The first and the last value of each metric of each rank in each attempt are always kept. Metrics with few values
    are kept completely.

    Args:
        events: The events in their order. The events are read one by one, so that the list of events need not fit into
            memory.
        most: The maximum number of metric values to keep. If there are many metrics, more values are kept, because at
            least ``_LEAST_VALUES`` values of each metric of each rank are kept.

    Returns:
        The kept events in their order, and the number of omitted values.
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
