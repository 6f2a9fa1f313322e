"""Define the events that the state machine in :mod:`.machine` receives, and the actions that it returns."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, TypeAlias

from container.contract.failures import Failure
from container.contract.frozen import dataclass
from estimators.backends.base import HostEnd
from estimators.records.states import SecondaryStatus

# --- events ---


class PlainEvent(enum.Enum):
    """Events that need no data."""

    #: The supervisor has started. The job begins, or waits for its turn in a queue.
    STARTED = "started"
    #: The job's turn in its queue has come, so that its hosts may be started.
    TURN_CAME = "turn_came"
    #: The caller that waits for the job has ended, so that the job must be stopped.
    CALLER_GONE = "caller_gone"
    #: The set of hosts for the next attempt has changed.
    HOSTS_CHANGED = "hosts_changed"
    #: The supervisor stops following the job, which continues on its managed service.
    LET_GO = "let_go"
    #: The next deadline has been reached.
    TIME_UP = "time_up"


@dataclass(frozen=True)
class StatusReported:
    """The backend reports a secondary status of SageMaker."""

    status: SecondaryStatus
    message: str = ""


@dataclass(frozen=True)
class HostEnded:
    """A host's training process has ended, and all of its output has been handled.

    Attributes:
        end: How the process ended.
        goes_on: Whether the other hosts of an elastic job continue without this host.
        last: Whether this was the last running host of an elastic job whose membership is final.
        saved: Whether the attempt has changed the folder of checkpoints.
    """

    end: HostEnd
    goes_on: bool = False
    last: bool = False
    saved: bool = False


@dataclass(frozen=True)
class OfFailure:
    """Base class of events about a failure."""

    failure: Failure


class Failed(OfFailure):
    """The attempt cannot continue because of a failure."""


class Diverged(OfFailure):
    """A metric is not a number, and the job's options require that the job fails in this case."""


@dataclass(frozen=True)
class StopAsked:
    """A client or a signal requests that the job stops.

    Attributes:
        reason: The reason for the stop.
        grace_s: The time that the script gets for saving, in seconds. None for the job's setting.
    """

    reason: str
    grace_s: float | None = None


@dataclass(frozen=True)
class LimitReached:
    """The job has reached a limit of the backend. The job is stopped as if ``max_run`` were over."""

    text: str


@dataclass(frozen=True)
class Preempted:
    """The whole attempt is preempted. The workers have ``notice_s`` seconds to save, and another attempt follows."""

    host: str
    notice_s: float


@dataclass(frozen=True)
class HostsAwaited:
    """Too few hosts of an elastic job are left, but some hosts will return. The next attempt will use the hosts that
    have returned.

    Attributes:
        hosts: The hosts that will return.
        saved: Whether the attempt has changed the folder of checkpoints.
    """

    hosts: tuple[str, ...]
    saved: bool = False


@dataclass(frozen=True)
class HostTaken:
    """A host of a job that is not elastic is taken away, either after a notice or at once.

    Attributes:
        host: The host.
        notice_s: The time that all ranks get for saving, in seconds. None if the host is taken away at once.
        back_in_s: In how many seconds the host returns. None if the host never returns.
    """

    host: str
    notice_s: float | None
    back_in_s: float | None


@dataclass(frozen=True)
class HostReturned:
    """A host that was taken away from a job that is not elastic has returned."""

    host: str


@dataclass(frozen=True)
class OfOutcome:
    """Base class of events about the end of a step, which has succeeded or has failed.

    Attributes:
        failure: The failure. None if the step has succeeded.
    """

    failure: Failure | None


class Collected(OfOutcome):
    """The outputs have been collected, or an error has occurred during the collection."""


class OverThere(OfOutcome):
    """The job has ended on its managed service (SageMaker)."""


Event: TypeAlias = (
    PlainEvent | StatusReported | HostEnded | OfFailure | StopAsked | LimitReached | Preempted | HostsAwaited
    | HostTaken | HostReturned | OfOutcome
)  # fmt: skip

# --- actions ---


class Do(enum.Enum):
    """An action that has no arguments."""

    #: Close the membership of an elastic job, so that no more hosts join.
    CLOSE_MEMBERSHIP = "close_membership"
    #: Request every host to stop. The script has the time to save that the job's options allow.
    STOP_HOSTS = "stop_hosts"
    #: End every host without time to save (:meth:`Backend.end_now`).
    END_HOSTS = "end_hosts"
    #: Record that the attempt's hosts have been started.
    HOSTS_STARTED = "hosts_started"
    #: Stop injecting faults into the attempt, because its hosts have ended.
    ATTEMPT_OVER = "attempt_over"
    #: Store in the status how the attempts ended.
    KEEP_ATTEMPTS = "keep_attempts"
    #: Enter the queue again, if the attempt was preempted for another job.
    QUEUE_AGAIN = "queue_again"
    #: Collect the remaining checkpoints, models and outputs, and pack them.
    COLLECT = "collect"
    #: Write the last status, and release the caller.
    FINISH = "finish"
    #: Stop following the job on its managed service.
    LET_GO = "let_go"


@dataclass(frozen=True)
class Begin:
    """Start an attempt on the given hosts."""

    number: int
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class KillHost:
    """Kill a host at once, as if its machine were lost."""

    host: str


@dataclass(frozen=True)
class Show:
    """Set the secondary status."""

    status: SecondaryStatus
    message: str = ""


@dataclass(frozen=True)
class Tell:
    """Record an event and write its text into the log."""

    kind: str
    host: str
    text: str
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Warn:
    """Store a warning in the status."""

    message: str


Action: TypeAlias = Do | Begin | KillHost | Show | Tell | Warn
