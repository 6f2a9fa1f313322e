"""Detect metrics of a running job that are not numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from container.contract import diverging
from container.contract.wire import Event

#: The kinds of events that contain a metric's value. The second kind is for values that a regex does not match.
_KINDS = ("metric", "not_a_number")


class Divergence:
    """Detects metrics that are not numbers, and infinite losses, once for each metric of a job.

    Args:
        own: The values that an earlier supervisor stored in the job's status.
    """

    def __init__(self, own: Mapping[str, Any]) -> None:
        self.noticed: list[str] = [str(name) for name in own.get("diverged") or ()]

    def look(self, event: Event) -> str | None:
        """Check an event. Return the text of a warning if the metric of the event has diverged, or None."""
        if event.kind not in _KINDS:
            return None
        name: Any = event.data.get("name")
        value: Any = event.data.get("value")
        if not isinstance(name, str) or name in self.noticed or not diverging.has_diverged(name, value):
            return None
        self.noticed.append(name)
        return diverging.describe(name, value, rank=event.rank, process=event.host, place=event.data)
