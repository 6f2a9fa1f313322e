"""What every backend does: run a spec's hosts somewhere, and say what they print and how they end.

A backend lives in the job's supervisor. It takes the two values that describe a job (spec and options) and nothing
else from the user's side.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from container.contract.wire import Event
from estimators.backends.events import BackendEvents, OutputRead, OutputsCollected
from estimators.backends.events import HostEnd as HostEnd
from estimators.job.errors import UnsupportedError
from estimators.job.request import HOST_PREFIX, JobOptions, TrainingJobSpec
from estimators.records.record import JobRecord

if TYPE_CHECKING:
    from container.system.asyncio_loop import AsyncioLoop  # callers do without asyncio
    from estimators.backends.hosts.membership import MembershipSource
    from estimators.backends.placement import ClusterPlacement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leftover(abc.ABC):
    """What a job whose supervisor is gone has left outside its record and its processes.

    Attributes:
        name: What it is called where it is.
        job: The job.
        kind: What it is: ``container``, ``network``, ``host``, ``fleet``.
        text: What there is of it, where its name does not say that.
    """

    name: str
    job: str
    kind: str = "host"
    text: str = ""

    @abc.abstractmethod
    def remove(self) -> None:
        """Remove it.

        Raises:
            OSError: that cannot be done.
            BackendError: likewise.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What ``fleetfit doctor`` has found out.

    Attributes:
        name: What was looked at.
        ok: Whether it will do; None where that cannot be told from here.
        text: What was found.
        remedy: What to do about it.
    """

    name: str
    ok: bool | None
    text: str
    remedy: str = ""


class Backend(abc.ABC):
    """Runs one job. All methods but the coroutines return at once; the loop does the rest.

    Args:
        loop: The supervisor's loop.
        record: The job's record.
        spec: The job.
        options: What only the supervisor needs.
        events: Takes what happens.
    """

    #: What it is called in errors.
    name: str
    #: Whether hosts can come and go while a job runs: the methods under "hosts that come and go".
    elastic = False
    #: Whether the hosts' processes may run as other users than the caller, in containers say.
    other_users = False

    def __init__(
        self, loop: AsyncioLoop, record: JobRecord, spec: TrainingJobSpec, options: JobOptions, events: BackendEvents
    ) -> None:
        self.loop = loop
        self.record = record
        self.spec = spec
        self.options = options
        self.events = events
        #: The caller's umask, for what scripts write.
        self.umask = 0o022
        #: Children of the supervisor that are not the job's, and are left alone when everything else is ended: those of
        #: a backend also when the supervisor itself ends.
        self.protected: set[int] = set()
        #: The number of the newest host, over all attempts: names are never used twice.
        self._newest = 0

    @classmethod
    @abc.abstractmethod
    def check(cls, spec: TrainingJobSpec, options: JobOptions) -> None:
        """Refuse by name what this backend cannot do; called before anything is claimed or started.

        Raises:
            UnsupportedError: with the feature, the reason and the remedy.
        """

    @classmethod
    @abc.abstractmethod
    def describe(cls, spec: TrainingJobSpec, options: JobOptions, record: Path) -> ClusterPlacement:
        """Return where the job would run, for ``plan()``; starts nothing.

        Args:
            spec: The job.
            options: How it would be run.
            record: The folder of its record, which need not be there.
        """

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """What :meth:`check` has just found out that the supervisor need not ask again: plain data for the record."""
        return None

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: JobOptions) -> dict[str, Any]:
        """Return the backend's options as they mean the same on another machine, which has other files and variables.

        Raises:
            ConfigurationError: they are wrong, or something that they name is not there.
        """
        return dict(options.backend_options)

    @classmethod
    def patient(cls, options: JobOptions) -> dict[str, Any]:
        """Return the backend's options for a job that is to wait where others have what it needs: a tuner's trial."""
        return dict(options.backend_options)

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return what jobs have left where their hosts were, for ``fleetfit clean``; nothing where nobody answers.

        Args:
            region: Where to look, of a backend that is searched by name (see
                :class:`estimators.job.fleets.Capabilities`); "": where its tools look by themselves.

        Raises:
            BackendError: one that is searched by name cannot be asked.
        """
        return ()

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        """Return what ``fleetfit doctor`` should say of it."""
        return ()

    def hand_on(self, host: str, data: bytes) -> None:
        """Tell what a host's training process has printed just now."""
        self.events.put_nowait(OutputRead(host, data))

    def warn(self, text: str, host: str | None = None) -> None:
        """Tell the user of something, in the log of a host; default: the first."""
        host = host or self.spec.hosts[0]
        self.hand_on(host, Event(kind="warning", host=host, data={"message": text}).to_line())

    @property
    @abc.abstractmethod
    def running(self) -> bool:
        """Whether a host runs whose end will still be told."""

    @property
    def attempt(self) -> int:
        """The number of this start of the job."""
        return 0

    @property
    def is_ending(self) -> bool:
        """Whether what ends now was told to."""
        return False

    @abc.abstractmethod
    def start(self, attempt: int) -> None:
        """Prepare the inputs, then start every host."""

    def use(self, hosts: tuple[str, ...]) -> None:
        """Run the next attempt on some of the job's hosts; before :meth:`start`, while no host runs."""
        self.spec = self.spec.with_hosts(hosts)

    def say(self, host: str, words: bytes) -> None:  # noqa: B027 - an image without our toolkit does not listen
        """Say something to a host's toolkit, which listens at the other end of its lifeline."""

    def kill_host(self, host: str) -> None:
        """End a host as the loss of its machine would: SIGKILL to everything of it."""
        raise NotImplementedError(f"{self.name}: a single host cannot be ended.")

    @abc.abstractmethod
    def stop(self) -> None:
        """Ask every host to stop, with the grace that the options give to the script."""

    @abc.abstractmethod
    def end_now(self) -> None:
        """End every host without grace."""

    # --- hosts that come and go ---

    def meeting_place(self) -> tuple[str, str]:
        """The address at which the hosts reach this machine, and the network interface between them."""
        raise NotImplementedError(f"{self.name}: the number of hosts cannot change.")

    def next_host(self) -> str:
        """A name that no host of the job has had; the job has it from now on."""
        had = {*self.spec.hosts, *self.record.hosts}  # a supervisor before this one may have added some
        self._newest = max(self._newest, *(int(name.rpartition("-")[2]) for name in had)) + 1
        name = f"{HOST_PREFIX}{self._newest}"
        # Known to the record before anything of it is there: the supervisor may be killed meanwhile.
        self.record.host_dir(name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.spec = self.spec.with_hosts((*self.spec.hosts, name))
        return name

    def membership(self) -> MembershipSource | None:
        """Return what says which hosts there are for an elastic job; None where as many come as are asked for."""
        return None

    @property
    def locates(self) -> bool:
        """Whether :meth:`locate` decides where a host is, so that one without a place never comes."""
        return False

    def locate(self, host: str, place: str) -> None:  # noqa: B027 - hosts of one machine are all in one place
        """Say at which place of :meth:`membership`'s a host is to be, before or after it was asked for."""

    def withdraw(self, host: str) -> None:  # noqa: B027 - hosts of one machine are there at once
        """Say that a host is not needed any more, which may not have come yet."""

    def add_host(self, host: str) -> None:
        """Bring the inputs to a further host, then start it."""
        raise NotImplementedError(f"{self.name}: the number of hosts cannot change.")

    async def refresh_checkpoints(self, host: str) -> None:  # noqa: B027 - a default
        """Let a host that does not train yet see what the job has saved since it was prepared.

        Hosts that share the folder with the others see it as it is saved.
        """

    async def share_checkpoints(self) -> None:  # noqa: B027 - a default
        """Let every host see what any of them has saved, while nothing trains on them."""

    @abc.abstractmethod
    def collect_outputs(self) -> None:
        """Bring the rest of the checkpoints, then pack models and outputs to where the spec wants them.

        Every host has ended; the job may have failed.
        """

    @abc.abstractmethod
    def cleanup(self) -> None:
        """Remove everything that is not part of the record. The last call, also after failures; must be quick."""


class TuningService(Protocol):
    """Tuning jobs of a managed service, by name. Every call may block, and raises what the service's client raises."""

    #: How often it is asked, in seconds.
    poll_s: float

    def upload(self, spec: TrainingJobSpec, source: Path) -> None:
        """Bring the code of all trials there."""

    def create(self, request: Mapping[str, Any], since: float) -> None:
        """Create a tuning job; one that this request has made since a time, in seconds since the epoch, will do.

        Raises:
            JobExistsError: the name is taken.
        """

    def describe(self, name: str) -> dict[str, Any] | None:
        """Return how a tuning job stands, as plain data; None where there is none."""

    def trials(self, name: str) -> list[dict[str, Any]]:
        """Return the summaries of its training jobs, as plain data, the oldest first."""

    def stop(self, name: str) -> None:
        """Stop it; one that is over is left alone."""

    def explain(self, error: Exception) -> tuple[str, bool]:
        """Return what an error means, and whether it may pass when the same is asked again."""

    def reconnect(self) -> None:
        """Read the credentials again."""


class ManagedService(Backend):
    """Follows one job on a service of somebody else's.

    The job outlives its supervisor, which follows it and can be started again, and its status is what is told there.
    :attr:`running` says whether the job is there, or may be; no host of it can be ended from here, nothing has to be
    collected, and it is never started again from here.
    """

    @classmethod
    def check_tuning(cls, spec: TrainingJobSpec, request: Mapping[str, Any]) -> None:
        """Refuse by name what the service's tuning jobs cannot have.

        Args:
            spec: A trial, without the hyperparameters that are tuned.
            request: The tuning job, as the service would be asked for it.

        Raises:
            ConfigurationError: a value is none that the service takes.
            UnsupportedError: with the reason and the remedy.
        """
        raise UnsupportedError(f"{cls.name} has no tuning jobs.")

    @classmethod
    def tuning_service(cls, options: JobOptions) -> TuningService:
        """Return the service's tuning jobs.

        Raises:
            ConfigurationError: the service cannot be reached like this.
        """
        raise UnsupportedError(f"{cls.name} has no tuning jobs.")

    def collect_outputs(self) -> None:
        """They are where the service puts them."""
        self.events.put_nowait(OutputsCollected(None))
