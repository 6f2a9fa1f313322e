"""What can happen to a job, and what can follow: the events and actions of :mod:`.machine`. Values."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, TypeAlias

from container.contract.failures import Failure
from estimators.backends.base import HostEnd
from estimators.records.states import SecondaryStatus

# --- what can happen ---


@dataclasses.dataclass(frozen=True)
class Started:
    """The job begins, when it has its turn in the queue, if it waits in one."""


@dataclasses.dataclass(frozen=True)
class TurnCame:
    """It is the job's turn in its queue."""


@dataclasses.dataclass(frozen=True)
class StatusReported:
    """The backend reports a secondary status of SageMaker's."""

    status: SecondaryStatus
    message: str = ""


@dataclasses.dataclass(frozen=True)
class HostEnded:
    """A host's training process has ended, and everything that it printed was given.

    Attributes:
        end: How.
        goes_on: Whether the others of an elastic job go on without it.
        last: Whether no other host of an elastic job runs.
        saved: Whether the attempt has left something new in the folder of checkpoints.
    """

    end: HostEnd
    goes_on: bool = False
    last: bool = False
    saved: bool = False


@dataclasses.dataclass(frozen=True)
class Failed:
    """The attempt cannot go on."""

    failure: Failure


@dataclasses.dataclass(frozen=True)
class Diverged:
    """A metric is not a number, for which the job is to fail."""

    failure: Failure


@dataclasses.dataclass(frozen=True)
class StopAsked:
    """Somebody stops the job.

    Attributes:
        reason: Who, or why.
        grace_s: How long the script has to save, in seconds; None for the job's own grace.
    """

    reason: str
    grace_s: float | None = None


@dataclasses.dataclass(frozen=True)
class CallerGone:
    """The caller that waits for the job has ended: nobody wants the job any more."""


@dataclasses.dataclass(frozen=True)
class LimitReached:
    """A limit of the backend's ends the job as ``max_run`` does."""

    text: str


@dataclasses.dataclass(frozen=True)
class Preempted:
    """All that train lose their hosts: they save within the notice, and another attempt follows."""

    host: str
    notice_s: float


@dataclasses.dataclass(frozen=True)
class HostsAwaited:
    """Too few hosts of an elastic job are left, and some that were taken come back: another attempt has them again.

    Attributes:
        hosts: Those that come back.
        saved: Whether the attempt has left something new in the folder of checkpoints.
    """

    hosts: tuple[str, ...]
    saved: bool = False


@dataclasses.dataclass(frozen=True)
class HostTaken:
    """A host of a gang is taken away, after a notice, or at once (``notice_s`` None).

    Attributes:
        host: The host.
        notice_s: How long its processes have to save, in seconds.
        back_in_s: In how many seconds it is there again; None for never.
    """

    host: str
    notice_s: float | None
    back_in_s: float | None


@dataclasses.dataclass(frozen=True)
class HostReturned:
    """A host of a gang that was taken away is there again."""

    host: str


@dataclasses.dataclass(frozen=True)
class HostsChanged:
    """Other hosts than before are there for the next attempt."""


@dataclasses.dataclass(frozen=True)
class Collected:
    """The outputs are in place, or the failure that prevented it."""

    failure: Failure | None


@dataclasses.dataclass(frozen=True)
class OverThere:
    """The job is over on its managed service."""

    failure: Failure | None


@dataclasses.dataclass(frozen=True)
class LetGo:
    """The job goes on on its managed service, and is not followed any more."""


@dataclasses.dataclass(frozen=True)
class TimeUp:
    """Time has passed, up to the next deadline."""


Event: TypeAlias = (
    Started | TurnCame | StatusReported | HostEnded | Failed | Diverged | StopAsked | CallerGone | LimitReached
    | Preempted | HostsAwaited | HostTaken | HostReturned | HostsChanged | Collected | OverThere | LetGo | TimeUp
)  # fmt: skip

# --- what follows ---


class Do(enum.Enum):
    """An action without arguments."""

    #: No host joins an elastic job any more.
    CLOSE_MEMBERSHIP = "close_membership"
    #: Ask every host to stop, with the grace that the options give to the script.
    STOP_HOSTS = "stop_hosts"
    #: End every host without grace.
    END_HOSTS = "end_hosts"
    #: Note that the attempt's hosts have been started.
    HOSTS_STARTED = "hosts_started"
    #: Inject no more faults into the attempt: its hosts have ended.
    ATTEMPT_OVER = "attempt_over"
    #: Write down how the attempts ended.
    KEEP_ATTEMPTS = "keep_attempts"
    #: Enter the queue once more, if the attempt has made room there.
    QUEUE_AGAIN = "queue_again"
    #: Bring the rest of the checkpoints, models and outputs, and pack them.
    COLLECT = "collect"
    #: Write the last status, and let the caller go.
    FINISH = "finish"
    #: Follow the job no longer.
    LET_GO = "let_go"


@dataclasses.dataclass(frozen=True)
class Begin:
    """Start an attempt on these hosts."""

    number: int
    hosts: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class KillHost:
    """End a host as the loss of its machine would."""

    host: str


@dataclasses.dataclass(frozen=True)
class Show:
    """Take a step of the secondary status."""

    status: SecondaryStatus
    message: str = ""


@dataclasses.dataclass(frozen=True)
class Tell:
    """Record an event, which people see in the live log too."""

    kind: str
    host: str
    text: str
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Warn:
    """Keep a warning with the status."""

    message: str


Action: TypeAlias = Do | Begin | KillHost | Show | Tell | Warn
