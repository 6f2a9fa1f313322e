"""Compute the timeline of a job's phases and hosts, with pure functions. The timeline consists of lanes with bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from container.contract.frozen import dataclass
from container.contract.membership import natural_key
from container.contract.wire import Event
from estimators.records.phases import phases

#: Kinds of events that the lanes use.
KINDS = (
    "phase", "process_started", "process_ended", "resized", "host_added", "host_ready", "host_excluded", "notice",
    "interrupted", "host_left", "host_lost",
)  # fmt: skip

#: The maximum number of attempts with a lane. The latest attempts have a lane.
_ATTEMPTS = 20
#: Kind of event -> the kind of mark, and the member of its data that names the host.
_MARKS = {
    "host_excluded": ("excluded", "name"),
    "interrupted": ("interrupted", "target"),
    "notice": ("interrupted", "name"),
    "host_left": ("left", "name"),
    "host_lost": ("lost", "name"),
}


@dataclass(frozen=True)
class Bar:
    """A period of time.

    Attributes:
        kind: The kind of the period, which determines the colour: the name of a phase, or ``host``.
        start_s: The beginning of the period, in seconds since the job's creation.
        end_s: The end of the period, in seconds since the job's creation.
    """

    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Mark:
    """A point in time.

    Attributes:
        kind: The event at this time: ``excluded``, ``interrupted``, ``left`` or ``lost``.
        at_s: The time, in seconds since the job's creation.
    """

    kind: str
    at_s: float


@dataclass(frozen=True)
class Lane:
    """One line of the timeline.

    Attributes:
        name: The name of the attempt or the host.
        bars: The periods of time, in order.
        marks: The points in time, in order.
    """

    name: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...] = ()


def phase_lanes(events: Sequence[Event], created: float) -> list[Lane]:
    """Return a lane for each attempt, with a bar for each known phase.

    Args:
        events: The job's events. Only the kinds ``phase``, ``process_started`` and ``process_ended`` are used.
        created: The time at which the job was created, in seconds since the epoch.
    """
    known = [event for event in events if event.kind in ("phase", "process_started", "process_ended")]
    if not known:
        return []
    last = max(event.attempt for event in known)
    # The supervisor may not know the number of the attempt when it writes the event `job_ended`.
    ends = [event for event in known if event.data.get("name") == "job_ended"]
    lanes = []
    for attempt in range(max(0, last - _ATTEMPTS + 1), last + 1):
        of_attempt = [event for event in known if event.attempt == attempt and event not in ends]
        if not of_attempt:
            continue
        begun = min(event.time_ns for event in of_attempt) / 1e9 - created if attempt else 0.0
        bars, at = [], max(0.0, begun)
        for name, seconds in phases([*of_attempt, *(ends if attempt == last else ())]).items():
            if seconds is not None:
                bars.append(Bar(name, at, at + seconds))
                at += seconds
        if bars:
            lanes.append(Lane(f"attempt {attempt + 1}" if last else "phases", tuple(bars)))
    return lanes


def host_lanes(events: Iterable[Event], created: float, until: float) -> list[Lane]:
    """Return a lane for each host. A lane contains the periods in which the host was present, and the host's marks.

    A host of an elastic job is present until it has left or is lost. Any other host is present while one of its
    processes runs.

    Args:
        events: The job's events. Only :data:`KINDS` are used.
        created: The time at which the job was created, in seconds since the epoch.
        until: The end of periods that are still open, in seconds since the epoch.
    """
    lanes: dict[str, _Presence] = {}
    for event in events:
        at = max(0.0, event.time_ns / 1e9 - created)
        if event.kind in ("host_added", "host_ready", "process_started"):
            name = str(event.data.get("name")) if event.kind == "host_added" else event.host
            lanes.setdefault(name, _Presence()).come(at, process=event.kind == "process_started")
        elif event.kind == "process_ended" and event.host in lanes:
            lanes[event.host].process_ended(at)
        elif event.kind in _MARKS:
            kind, member = _MARKS[event.kind]
            lane = lanes.setdefault(str(event.data.get(member) or event.host), _Presence())
            lane.marks.append(Mark(kind, at))
            if kind in ("left", "lost"):
                lane.go(at)
    for lane in lanes.values():
        lane.go(max(0.0, until - created))
    return [Lane(name, tuple(lanes[name].bars), tuple(lanes[name].marks)) for name in sorted(lanes, key=natural_key)]


class _Presence:
    """The periods in which one host was present."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []
        self.marks: list[Mark] = []
        self._begun: float | None = None
        self._processes = 0
        self._announced = False

    def come(self, at: float, *, process: bool) -> None:
        if self._begun is None:
            self._begun = at
        self._processes += process
        self._announced = self._announced or not process

    def process_ended(self, at: float) -> None:
        self._processes -= 1
        if self._processes <= 0 and not self._announced:
            self.go(at)

    def go(self, at: float) -> None:
        if self._begun is not None:
            self.bars.append(Bar("host", self._begun, max(self._begun, at)))
        self._begun, self._processes, self._announced = None, 0, False


def length(lanes: Iterable[Lane]) -> float:
    """Return the time from the job's creation to the end of the lanes, in seconds. The result is never 0."""
    ends = [bar.end_s for lane in lanes for bar in lane.bars] + [mark.at_s for lane in lanes for mark in lane.marks]
    return max(ends, default=0.0) or 1.0
