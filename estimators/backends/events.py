"""Define the events that a backend reports to its job's supervisor, through a queue that keeps their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from container.contract.failures import Failure
from container.contract.frozen import dataclass


@dataclass(frozen=True)
class StatusTold:
    """A new secondary status of the job, with a message. SageMaker defines the statuses (``Downloading``,
    ``Training``).
    """

    status: str
    message: str = ""


@dataclass(frozen=True)
class OutputRead:
    """Output of a host's training process.

    Attributes:
        host: The host.
        data: The bytes.
        time_ns: The time at which the process printed the bytes, in nanoseconds since the epoch. None for the current
            time.
    """

    host: str
    data: bytes
    time_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class HostEnd:
    """The end of a host's part in the attempt. All output of the host's training process was reported before.

    Either the training process has ended, or the host was lost. The host may also have been lost, withdrawn or stopped
    before its training process was started.

    Attributes:
        host: The host.
        exit_code: The exit code of the process. None if a signal killed the process, the host was lost, or the process
            was never started.
        signal: The number of the signal that killed the process, or None.
        failure: The cause of the end, or None if the backend does not know the cause. An example of a known cause is a
            container that ran out of memory.
    """

    host: str
    exit_code: int | None = None
    signal: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class HostNoticed:
    """The provider's announcement that it will take a host, such as a spot machine, away in ``seconds`` seconds."""

    host: str
    seconds: float


@dataclass(frozen=True)
class AttemptFailed:
    """A failure after which the attempt cannot continue. The supervisor has to terminate all running hosts."""

    failure: Failure


@dataclass(frozen=True)
class OutputsCollected:
    """The end of the collection of outputs. ``failure`` is the reason if outputs are missing, otherwise None."""

    failure: Failure | None


@dataclass(frozen=True)
class ValuesNoted:
    """Values to store in the job's status, in the section for fleetfit's own values."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class LimitMet:
    """A limit of the backend that the job has reached. The supervisor stops the job as if ``max_run`` were reached."""

    text: str


@dataclass(frozen=True)
class WaitTold:
    """The reason why a provider waits for hosts, such as a queue. The user sees the reason while no host trains."""

    text: str


@dataclass(frozen=True)
class ServiceDescribed:
    """The managed service's description of the job, in the format of a DescribeTrainingJob response."""

    status: Mapping[str, Any]


@dataclass(frozen=True)
class ServiceRestarted:
    """A restart of the job by its managed service. The first restart begins the attempt with the number 1."""

    attempt: int


@dataclass(frozen=True)
class ServiceEnded:
    """The end of the job at its managed service. All output of the job was reported before.

    Attributes:
        status: The managed service's last description of the job.
        failure: The failure, if the job has failed.
    """

    status: Mapping[str, Any]
    failure: Failure | None


#: The events of a backend.
BackendEvent: TypeAlias = (
    StatusTold | OutputRead | HostEnd | HostNoticed | AttemptFailed | OutputsCollected | ValuesNoted | LimitMet
    | ServiceDescribed | ServiceRestarted | ServiceEnded
)  # fmt: skip
#: The events of a provider.
ProviderEvent: TypeAlias = WaitTold | LimitMet | ValuesNoted


class BackendEvents(Protocol):
    """A queue to which a backend adds its events in the order in which they happen."""

    def put_nowait(self, event: BackendEvent) -> None:
        """Add an event to the queue."""


class ProviderEvents(Protocol):
    """A queue to which a provider adds its events in the order in which they happen."""

    def put_nowait(self, event: ProviderEvent) -> None:
        """Add an event to the queue."""
