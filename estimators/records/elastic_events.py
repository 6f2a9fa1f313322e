"""Describe events of an elastic job in texts for the log and for plots.

In an elastic job, hosts can join and leave. A commit saves the training's state in memory, and a restore returns to the
last commit. The functions have no side effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from container.contract.wire import Event


def committed(data: Mapping[str, Any]) -> str:
    """Return the text for a ``commit`` event: the state of the training was saved in memory."""
    every = number(data, "every")
    return f"step {number(data, 'step')} is committed; commits are {every} step{'' if every == 1 else 's'} apart"


def restored(data: Mapping[str, Any]) -> str:
    """Return the text for a ``restored`` event: a rank has returned to the last commit."""
    lost = number(data, "steps_lost")
    again = f"{lost} step{'' if lost == 1 else 's'} to train again" if lost else "nothing is lost"
    return f"back to the last commit, step {number(data, 'step')}: {again}"


def lost(data: Mapping[str, Any]) -> str:
    """Return the text for a ``state_lost`` event: all workers with the state were lost, and a checkpoint is loaded."""
    return (
        "all workers with the training's state were lost before another worker had received the state: back to the "
        f"checkpoint of step {number(data, 'step')}"
    )


def number(data: Mapping[str, Any], name: str) -> int:
    """Return a value of an event as a whole number. Return 0 if the value is not a number."""
    value = data.get(name)
    return int(value) if isinstance(value, int | float) else 0


def words(event: Event) -> list[tuple[str, str]]:
    """Return the descriptions of an event of an elastic job, as pairs of a label for plots and a text.

    Return an empty list for any other event, and for the first start of the workers.
    """
    data = event.data
    match event.kind:
        case "commit":
            return [("committed", committed(data))]
        case "restored":
            return [("restored", restored(data))]
        case "state_lost":
            return [("lost", lost(data))]
        case "restarted":
            reason = data.get("reason")
            return [("restarted", f"all workers restart{f': {reason}' if reason else ''}")]
        case "host_excluded":
            return [("excluded", f"{data.get('name')} is excluded for {data.get('seconds')} s")]
        case "resized" if number(data, "before"):
            changes = [(kind, data.get(kind)) for kind in ("joined", "left")]
            found = [(kind, f"{', '.join(map(str, names))} {kind}") for kind, names in changes if names]
            return [*found, ("resized", f"{number(data, 'before')} → {number(data, 'size')}")]
    return []


class Restores:
    """A filter that finds the first ``restored`` event of each restore.

    In a restore, every rank returns to the last commit and reports one such event.
    """

    def __init__(self) -> None:
        self._step = -1
        self._ranks: set[int | None] = set()

    def begins(self, event: Event) -> bool:
        """Return whether a ``restored`` event is the first event of a restore, and remember the event."""
        step = number(event.data, "step")
        if step != self._step or event.rank in self._ranks:
            self._step = step
            self._ranks = {event.rank}
            return True
        self._ranks.add(event.rank)
        return False


class Telling:
    """A filter for the events of an elastic job that are printed as lines of the log.

    Every restore and every loss of the state is printed. There may be a commit every second. Therefore a commit is
    printed only if it is the first one, or if the number of steps between commits has more than doubled or halved since
    the last printed commit. The record contains all commits that the script reports.
    """

    def __init__(self) -> None:
        self._every = 0
        self._restores = Restores()

    def line(self, event: Event) -> str | None:
        """Return the line to print for an event. Return None if the event is not printed."""
        if event.kind == "commit":
            every = number(event.data, "every")
            if self._every and self._every / 2 <= every <= 2 * self._every:
                return None
            self._every = every
            return committed(event.data)
        if event.kind == "restored" and self._restores.begins(event):
            return restored(event.data)
        if event.kind == "state_lost":
            return lost(event.data)
        return None
