"""Define the events that a backend puts into the queue of its job's supervisor, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from container.contract.failures import Failure


@dataclasses.dataclass(frozen=True)
class StatusTold:
    """One of SageMaker's secondary statuses (``Downloading``, ``Training``), with a message."""

    status: str
    message: str = ""


@dataclasses.dataclass(frozen=True)
class OutputRead:
    """Output of a host's training process.

    Attributes:
        host: The host.
        data: The bytes.
        time_ns: The time of printing, in nanoseconds since the epoch. None for the current time.
    """

    host: str
    data: bytes
    time_ns: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostEnd:
    """The end of a host's training process. All output of the process was reported before.

    Attributes:
        host: The host.
        exit_code: The exit code of the process, if the process exited.
        signal: The number of the signal that killed the process, or None.
        failure: The cause, if the backend knows the cause (for example, a container that ran out of memory).
    """

    host: str
    exit_code: int | None = None
    signal: int | None = None
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class HostNoticed:
    """The notice that a host will be taken away in a number of seconds, and can be replaced."""

    host: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class AttemptFailed:
    """A failure after which the backend cannot continue. All running hosts must be terminated."""

    failure: Failure


@dataclasses.dataclass(frozen=True)
class OutputsCollected:
    """The outputs are in place, or could not be collected, with the failure."""

    failure: Failure | None


@dataclasses.dataclass(frozen=True)
class ValuesNoted:
    """Values to store with the status, under fleetfit's own key."""

    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class LimitMet:
    """A limit of the backend that the job has reached. The job is then stopped as by ``max_run``."""

    text: str


@dataclasses.dataclass(frozen=True)
class WaitTold:
    """The reason why a provider waits (a queue, for example). The reason is shown while no host trains."""

    text: str


@dataclasses.dataclass(frozen=True)
class ServiceDescribed:
    """The job's state at its managed service, in DescribeTrainingJob's form."""

    status: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ServiceRestarted:
    """A restart of the job by its managed service, with the attempt's number (from 1)."""

    attempt: int


@dataclasses.dataclass(frozen=True)
class ServiceEnded:
    """The end of the job at its managed service. All output of the job was reported before.

    Attributes:
        status: The last description of the job.
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
    """A receiver of a backend's events, in order."""

    def put_nowait(self, event: BackendEvent) -> None:
        """Receive the next event."""


class ProviderEvents(Protocol):
    """A receiver of a provider's events, in order."""

    def put_nowait(self, event: ProviderEvent) -> None:
        """Receive the next event."""
