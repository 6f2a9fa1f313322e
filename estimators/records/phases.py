"""Compute how long each phase of a job took, such as the launch and the training, from the job's recorded events."""

from __future__ import annotations

from collections.abc import Iterable

from container.contract.wire import Event

#: The phases in order. They are defined by :func:`phases`.
PHASES = ("launch", "import", "rendezvous", "first_step", "training", "teardown")


def phases(events: Iterable[Event]) -> dict[str, float | None]:
    """Return the duration of each phase of the last attempt in seconds, by the phase's name.

    The value is None for a phase without an event.

    The launch begins at the job's creation, or at the first event of a later attempt. Each other phase begins where the
    previous phase ends. The table says when each phase ends:

    =============  =====================================================================================
    launch         until the ranks were started
    import         until the last rank has imported its modules (``imported``)
    rendezvous     until the last rank has connected to the other ranks (``rendezvous``)
    first_step     until the last rank has finished its first training step (``first_step``)
    training       until the training has ended (``training_ended``), or until the script has ended
    teardown       until the job has ended
    =============  =====================================================================================

    If a phase has no event, the next phase begins at the end of the last phase that has an event. Therefore the sum of
    all phases is the whole duration. If a script reports no events, ``training`` is the whole run of the script.

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
        # Search all attempts, because the supervisor may record the job's end with the number of an earlier attempt.
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
