"""Compute how long each phase of a job took, from the job's events alone."""

from __future__ import annotations

from collections.abc import Iterable

from container.contract.wire import Event

#: The phases in order. They are defined by :func:`phases`.
PHASES = ("launch", "import", "rendezvous", "first_step", "training", "teardown")


def phases(events: Iterable[Event]) -> dict[str, float | None]:
    """Return the duration of each phase of the last attempt, in seconds. None for a phase that the events do not show.

    =============  =====================================================================================
    launch         from the job's creation (a later attempt: its first event) until its ranks were started
    import         until the last rank had ``imported`` its modules
    rendezvous     until the last rank had joined the others (``rendezvous``)
    first_step     until the last rank had made its ``first_step``
    training       until the ``training_ended``, or until the script ended
    teardown       until the job's end
    =============  =====================================================================================

    A phase begins at the end of the last known phase, so that the sum of the phases is the whole duration. If a script
    reports nothing, ``training`` is the whole run of the script.

    Args:
        events: The job's events. Only the kinds ``phase`` (data ``{"name": …}``), ``process_started`` and
            ``process_ended`` are used.
    """
    marks = _Marks(events)
    begun = marks.begun
    started = marks.last("ranks_started") or marks.first_process
    ended = marks.last("training_ended") or marks.last("ranks_ended") or marks.last_process
    result: dict[str, float | None] = dict.fromkeys(PHASES)
    result["launch"] = _seconds(begun, started)
    known = started
    for phase, mark in (("import", "imported"), ("rendezvous", "rendezvous"), ("first_step", "first_step")):
        time_ns = marks.last(mark)
        if time_ns is not None:
            result[phase] = _seconds(known, time_ns)
            known = time_ns
    result["training"] = _seconds(known, ended)
    result["teardown"] = _seconds(ended, marks.last("job_ended"))
    return result


class _Marks:
    """The times at which the phases of the last attempt ended, in nanoseconds since the epoch."""

    def __init__(self, events: Iterable[Event]) -> None:
        kept = [event for event in events if event.kind in ("phase", "process_started", "process_ended")]
        attempt = max((event.attempt for event in kept), default=0)
        last = [event for event in kept if event.attempt == attempt]
        created = [e.time_ns for e in kept if e.data.get("name") in ("job_created", "supervisor_started")]
        first_of_attempt = min((event.time_ns for event in last), default=None)
        self.begun = min(created, default=first_of_attempt) if attempt == 0 else first_of_attempt
        self._last: dict[str, int] = {}
        for event in last:
            if event.kind == "phase":
                name = str(event.data.get("name"))
                self._last[name] = max(event.time_ns, self._last.get(name, 0))
        # The supervisor may not know the number of the attempt when it writes the end.
        ends = [event.time_ns for event in kept if event.kind == "phase" and event.data.get("name") == "job_ended"]
        if ends:
            self._last["job_ended"] = max(ends)
        starts = [e.time_ns for e in last if e.kind == "process_started" and e.rank is not None]
        stops = [e.time_ns for e in last if e.kind == "process_ended" and e.rank is not None]
        self.first_process = max(starts, default=None)
        self.last_process = max(stops, default=None)

    def last(self, name: str) -> int | None:
        return self._last.get(name)


def _seconds(start: int | None, end: int | None) -> float | None:
    """Return the seconds between two times. Return None if a time is unknown.

    The result is at least 0, because the clocks of hosts may differ slightly.
    """
    if start is None or end is None:
        return None
    return max(0, end - start) / 1e9
