"""Extract from the events of an elastic job how and when the job changed, for plots. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from container.contract.wire import Event
from estimators.records.elastic_events import Restores, words
from estimators.results.result import Moment

#: Kinds of events that become moments.
KINDS = frozenset(("resized", "host_excluded", "commit", "restored", "restarted"))


def moments(events: Iterable[Event], created: float | None) -> tuple[Moment, ...]:
    """Return the changes of an elastic job in chronological order. The first membership is omitted, because nothing
    changes.

    Args:
        events: The job's events.
        created: When the job was created, in seconds since the epoch. None to use the time of the first event.
    """
    kept = [event for event in events if event.kind in KINDS]
    origin = created * 1e9 if created is not None else min((event.time_ns for event in kept), default=0)
    found: list[Moment] = []
    restores = Restores()
    for event in kept:
        if event.kind == "restored" and not restores.begins(event):
            continue
        at = (event.time_ns - origin) / 1e9
        found += [Moment(kind=kind, elapsed_s=at, text=text) for kind, text in words(event)]
    return tuple(found)
