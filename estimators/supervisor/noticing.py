"""What a running job's supervisor notices in its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from container.contract import diverging
from container.contract.wire import Event

#: Kinds of events that tell a metric's value: of the second kind are those that a regex does not catch.
_KINDS = ("metric", "not_a_number")


class Divergence:
    """Notices metrics that are not numbers, and infinite losses; once for each metric of a job.

    Args:
        own: What is kept with the job's status, of an earlier supervisor.
    """

    def __init__(self, own: Mapping[str, Any]) -> None:
        self.noticed: list[str] = [str(name) for name in own.get("diverged") or ()]

    def look(self, event: Event) -> str | None:
        """Take an event; returns what is to be said of it, if anything is."""
        if event.kind not in _KINDS:
            return None
        name: Any = event.data.get("name")
        value: Any = event.data.get("value")
        if not isinstance(name, str) or name in self.noticed or not diverging.has_diverged(name, value):
            return None
        self.noticed.append(name)
        return diverging.describe(name, value, rank=event.rank, process=event.host, place=event.data)
