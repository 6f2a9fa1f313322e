"""Detect metrics of a running job that are not numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from container.contract import diverging
from container.contract.wire import Event

#: The kinds of events that contain a metric's value. ``not_a_number`` is for a value such as ``nan``, which the
#: metric's regex does not match.
_KINDS = ("metric", "not_a_number")


class Divergence:
    """A detector of metrics that are not numbers, and of infinite losses. Each metric of a job is reported only once.

    Args:
        own: fleetfit's own values in the job's status. These values name the metrics that an earlier supervisor has
            reported.
    """

    def __init__(self, own: Mapping[str, Any]) -> None:
        self.noticed: list[str] = [str(name) for name in own.get("diverged") or ()]

    def look(self, event: Event) -> str | None:
        """Check an event. Return a warning if the event's metric has diverged, or None."""
        if event.kind not in _KINDS:
            return None
        name: Any = event.data.get("name")
        value: Any = event.data.get("value")
        if not isinstance(name, str) or name in self.noticed or not diverging.has_diverged(name, value):
            return None
        self.noticed.append(name)
        return diverging.describe(name, value, rank=event.rank, process=event.host, place=event.data)
