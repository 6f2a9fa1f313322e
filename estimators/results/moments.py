"""What happened to an elastic job and when, from its events: for plots. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.wire import Event
from estimators.records.elastic_events import Restores, committed, number, restored
from estimators.results.result import Moment

#: Kinds of events that moments are made of.
KINDS = frozenset(("resized", "host_excluded", "commit", "restored", "restarted"))


def moments(events: Iterable[Event], created: float | None) -> tuple[Moment, ...]:
    """Return the moments, in their order; the first membership is none.

    Args:
        events: The job's events.
        created: When the job was created, in seconds since the epoch; None for the first event's time.
    """
    kept = [event for event in events if event.kind in KINDS]
    origin = created * 1e9 if created is not None else min((event.time_ns for event in kept), default=0)
    found: list[Moment] = []
    restores = Restores()
    for event in kept:
        if event.kind == "restored" and not restores.begins(event):
            continue
        at = (event.time_ns - origin) / 1e9
        found += [Moment(kind=kind, elapsed_s=at, text=text) for kind, text in _told(event)]
    return tuple(found)


def _told(event: Event) -> list[tuple[str, str]]:
    data = event.data
    if event.kind == "commit":
        return [("committed", committed(data))]
    if event.kind == "restored":
        return [("restored", restored(data))]
    if event.kind == "restarted":
        reason = data.get("reason")
        return [("restarted", f"all workers restart{f': {reason}' if reason else ''}")]
    if event.kind == "host_excluded":
        return [("excluded", f"{data.get('name')} is excluded for {data.get('seconds')} s")]
    before, size = number(data, "before"), number(data, "size")
    if not before:
        return []
    joined, left = _names(data, "joined"), _names(data, "left")
    found = [("joined", f"{', '.join(joined)} joined")] if joined else []
    found += [("left", f"{', '.join(left)} left")] if left else []
    return [*found, ("resized", f"{before} → {size}")]


def _names(data: Mapping[str, Any], name: str) -> list[str]:
    value = data.get(name)
    return [str(item) for item in value] if isinstance(value, list | tuple) else []
