"""What a backend tells the supervisor of its job: values, which are put into the supervisor's queue in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from container.contract.failures import Failure


@dataclasses.dataclass(frozen=True)
class StatusTold:
    """Tell a secondary status of SageMaker's (``Downloading``, ``Training``), with a message."""

    status: str
    message: str = ""


@dataclasses.dataclass(frozen=True)
class OutputRead:
    """Hand on bytes that a host's training process printed.

    Attributes:
        host: The host.
        data: The bytes.
        time_ns: Where they were not printed just now, when, in nanoseconds since the epoch.
    """

    host: str
    data: bytes
    time_ns: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostEnd:
    """Tell how a host's training process ended; everything that it printed has been told.

    Attributes:
        host: The host.
        exit_code: The exit status, if it exited.
        signal: The signal that killed it, if one did.
        failure: What the backend itself knows of the cause (a container that ran out of memory, say).
    """

    host: str
    exit_code: int | None = None
    signal: int | None = None
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class HostNoticed:
    """Tell that a host will be taken away, in so many seconds; another one can be had for it."""

    host: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class AttemptFailed:
    """Tell that the backend cannot go on; every host that runs has to be ended."""

    failure: Failure


@dataclasses.dataclass(frozen=True)
class OutputsCollected:
    """Tell that the outputs are in place, or the failure that prevented it."""

    failure: Failure | None


@dataclasses.dataclass(frozen=True)
class ValuesNoted:
    """Have values kept with the status, under fleetfit's own key."""

    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class LimitMet:
    """Tell that the job has reached a limit of the backend's, and is to be stopped as by ``max_run``."""

    text: str


@dataclasses.dataclass(frozen=True)
class WaitTold:
    """Tell what a provider waits for (a place in a queue, say); shown while no host trains."""

    text: str


@dataclasses.dataclass(frozen=True)
class ServiceDescribed:
    """Tell how the job stands on its managed service, in DescribeTrainingJob's shape."""

    status: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ServiceRestarted:
    """Tell that the job was started again on its managed service, for this time (from 1)."""

    attempt: int


@dataclasses.dataclass(frozen=True)
class ServiceEnded:
    """Tell that the job is over on its managed service; everything that it printed has been told.

    Attributes:
        status: The last description.
        failure: Where it failed, what is known of the cause.
    """

    status: Mapping[str, Any]
    failure: Failure | None


#: What a backend tells.
BackendEvent: TypeAlias = (
    StatusTold | OutputRead | HostEnd | HostNoticed | AttemptFailed | OutputsCollected | ValuesNoted | LimitMet
    | ServiceDescribed | ServiceRestarted | ServiceEnded
)  # fmt: skip
#: What a provider tells.
ProviderEvent: TypeAlias = WaitTold | LimitMet | ValuesNoted


class BackendEvents(Protocol):
    """Take what a backend tells, in its order."""

    def put_nowait(self, event: BackendEvent) -> None:
        """Take the next event."""


class ProviderEvents(Protocol):
    """Take what a provider tells, in its order."""

    def put_nowait(self, event: ProviderEvent) -> None:
        """Take the next event."""
