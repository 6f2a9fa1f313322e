"""Define the interface of backends. A backend runs a job's hosts, and reports what they print and how they end.

A backend runs in the job's supervisor, the process that controls the job. The backend's only inputs from the user are
the job's spec and options.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from container.contract.frozen import dataclass
from container.contract.wire import Event
from estimators.backends.events import BackendEvents, OutputRead, OutputsCollected
from estimators.backends.events import HostEnd as HostEnd
from estimators.job.errors import UnsupportedError
from estimators.job.request import HOST_PREFIX, JobOptions, TrainingJobSpec
from estimators.records.record import JobRecord

if TYPE_CHECKING:
    from container.system.asyncio_loop import AsyncioLoop  # the caller's process must not import asyncio
    from estimators.backends.hosts.membership import MembershipSource
    from estimators.backends.placement import ClusterPlacement


@dataclass(frozen=True, kw_only=True)
class Leftover(abc.ABC):
    """A resource that a job may leave behind if its supervisor is killed, such as a container or a cloud machine.

    ``fleetfit clean`` removes leftovers. Files in the job's record are not leftovers.

    Attributes:
        name: The name of the resource on its machine or in its cloud service.
        job: The name of the job, or "" if the resource does not belong to a single job.
        kind: The kind of the resource: ``container``, ``network``, ``host``, ``fleet`` or ``kept`` (a process that
            waits for the next job).
        text: A description, if the name alone does not identify the resource.
    """

    name: str
    job: str
    kind: str = "host"
    text: str = ""

    @abc.abstractmethod
    def remove(self) -> None:
        """Remove the leftover.

        Raises:
            OSError: the removal failed.
            BackendError: the removal failed.
        """


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check by ``fleetfit doctor``, the command that checks whether the backends can be used.

    Attributes:
        name: The name of the checked program, service or backend.
        ok: Whether the program, service or backend can be used. None if this machine cannot determine this, or if the
            user may not need the program, service or backend.
        text: The result of the check.
        remedy: A description of what the user should do.
    """

    name: str
    ok: bool | None
    text: str
    remedy: str = ""


class BackendQueries(abc.ABC):
    """Questions about jobs that a backend answers without starting anything.

    Subclasses are the host providers, which supply the hosts of jobs, and the backends that need no host provider. A
    subclass overrides the methods for the features that it supports. The process that calls ``fit()`` uses only these
    methods. Therefore the module of a subclass should import asyncio and other modules for running jobs only in the
    methods that need them.
    """

    @classmethod
    @abc.abstractmethod
    def check(cls, spec: TrainingJobSpec, options: JobOptions) -> None:
        """Refuse features of the job that are not supported. The call starts nothing and reserves no resources.

        Raises:
            UnsupportedError: a feature is not supported. The message has the feature, the reason and the remedy.
        """

    @classmethod
    @abc.abstractmethod
    def placement(cls, spec: TrainingJobSpec, options: JobOptions, record: Path) -> ClusterPlacement:
        """Return where the job would run, for ``plan()``. The call starts nothing.

        Args:
            spec: The job.
            options: The run options of the job.
            record: The folder for the job's record, which need not exist.
        """

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """Find values that the supervisor needs and only the process that calls ``fit()`` knows. Return them as plain
        data, or None if there are none.

        The values are stored in the job's record, from which the supervisor reads them.
        """
        return None

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: JobOptions) -> dict[str, Any]:
        """Return the backend's options in a form that does not depend on this machine's files and variables.

        For example, the machines that a host file lists replace the path of the file.

        Raises:
            ConfigurationError: an option is invalid, or names a file that does not exist.
        """
        return dict(options.backend_options)

    @classmethod
    def patient(cls, options: JobOptions) -> dict[str, Any]:
        """Return the backend's options, changed for the trials of a tuner: a trial waits while other jobs use the
        resources.
        """
        return dict(options.backend_options)

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return the resources that jobs have left behind, for ``fleetfit clean``.

        The result may include resources of running jobs. The caller does not remove these resources.

        If the backend cannot be reached, return an empty list. A backend that is searched only at the user's request
        raises BackendError instead.

        Args:
            region: The region to search, for backends that are searched only if the user names a region
                (``searched_by_name`` in :class:`estimators.job.fleets.Capabilities`). If "", the default region of the
                backend's tools is searched.

        Raises:
            BackendError: the user has requested the search, and the backend cannot be reached.
        """
        return ()

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        """Return the backend's findings for ``fleetfit doctor``."""
        return ()


class Backend(abc.ABC):
    """An object that runs the hosts of one job.

    All methods except coroutines return without waiting. The work that they start continues in the event loop.

    Args:
        loop: The supervisor's event loop.
        record: The job's record.
        spec: The job.
        options: The job's options: the user's run options, and the options that fleetfit sets.
        events: Receives the backend's events.
    """

    #: The backend's name in error messages.
    name: str
    #: Whether the hosts' processes may run as other users than the caller, for example in containers.
    other_users = False
    #: The number of the current attempt.
    attempt = 0
    #: Whether the job is being terminated.
    is_ending = False

    def __init__(
        self, loop: AsyncioLoop, record: JobRecord, spec: TrainingJobSpec, options: JobOptions, events: BackendEvents
    ) -> None:
        self.loop = loop
        self.record = record
        self.spec = spec
        self.options = options
        self.events = events
        #: The umask of the scripts, which is the umask of the process that called ``fit()``.
        self.umask = 0o022
        #: Pids of child processes that the supervisor does not kill together with the job's processes. Child processes
        #: that a backend has added are not killed at the end of the supervisor either.
        self.protected: set[int] = set()
        #: The highest host number in all attempts (``3`` for ``algo-3``). The name of a host is never reused.
        self._newest = 0

    def hand_on(self, host: str, data: bytes) -> None:
        """Report bytes that a host's training process has just printed."""
        self.events.put_nowait(OutputRead(host, data))

    def warn(self, text: str, host: str | None = None) -> None:
        """Show a warning to the user, in the log of ``host``. If ``host`` is None, the log of the job's first host is
        used.
        """
        host = host or self.spec.hosts[0]
        self.hand_on(host, Event(kind="warning", host=host, data={"message": text}).to_line())

    @property
    @abc.abstractmethod
    def running(self) -> bool:
        """Return whether the backend still has to report the :class:`HostEnd` of a host that it has started.

        A host whose processes have all ended counts as running until its HostEnd is reported.
        """

    @abc.abstractmethod
    def start(self, attempt: int) -> None:
        """Prepare the inputs, then start all hosts.

        Args:
            attempt: The number of the attempt. The first attempt has the number 0.
        """

    def use(self, hosts: tuple[str, ...]) -> None:
        """Set the hosts of the next attempt, which are some or all of the job's hosts.

        Call this before :meth:`start`, while no host runs.
        """
        self.spec = self.spec.with_hosts(hosts)

    def say(self, host: str, words: bytes) -> None:  # an image without our toolkit has no lifeline
        """Write data to a host's lifeline, the channel from which the host's toolkit reads messages."""

    def kill_host(self, host: str) -> None:
        """Kill all processes of a host with SIGKILL, as if its machine were lost."""
        raise NotImplementedError(f"{self.name}: a single host cannot be ended.")

    @abc.abstractmethod
    def stop(self) -> None:
        """Request every host to stop. The scripts get SIGTERM, and may save and exit.

        If hosts still run when the grace period of the run options is over, the supervisor calls :meth:`end_now`.
        """

    @abc.abstractmethod
    def end_now(self) -> None:
        """End every host without the grace period of the run options.

        A backend may give fleetfit's own processes on the hosts a moment to terminate the scripts before it kills the
        remaining processes. Processes that copy saved files may continue. A job that runs at a managed service also
        continues.
        """

    # --- hosts that join and leave ---

    def meeting_place(self) -> tuple[str, str]:
        """Return the address at which the hosts reach this machine, and the name of a host's network interface to the
        other hosts.
        """
        raise NotImplementedError(f"{self.name}: the number of hosts cannot change.")

    def next_host(self) -> str:
        """Add a host to the job, and return its name. The job has never used this name before."""
        had = {*self.spec.hosts, *self.record.hosts}  # an earlier supervisor may have added hosts
        self._newest = max(self._newest, *(int(name.rpartition("-")[2]) for name in had)) + 1
        name = f"{HOST_PREFIX}{self._newest}"
        # Create the folder before the host is started: if this supervisor is killed, the next one must not reuse the
        # name.
        self.record.host_dir(name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.spec = self.spec.with_hosts((*self.spec.hosts, name))
        return name

    def membership(self) -> MembershipSource | None:
        """Return the source that lists the machines or nodes for the hosts of an elastic job.

        Return None if any number of hosts can be acquired.
        """
        return None

    @property
    def locates(self) -> bool:
        """Return whether :meth:`locate` decides where a host runs. If True, a host is only started after a call of
        :meth:`locate`.
        """
        return False

    def locate(self, host: str, place: str) -> None:
        """Set the machine or node on which a host runs, before or after the host is requested.

        Args:
            host: The name of the host.
            place: The name of a machine or node that the source returned by :meth:`membership` lists.
        """

    def withdraw(self, host: str) -> None:
        """Cancel the request for a host if the host is not acquired yet, and report the host's end."""

    def add_host(self, host: str) -> None:
        """Provide the inputs to an additional host, then start the host."""
        raise NotImplementedError(f"{self.name}: the number of hosts cannot change.")

    async def refresh_checkpoints(self, host: str) -> None:
        """Copy new checkpoints to a host that does not train yet. New checkpoints are those saved since the host was
        prepared.

        Do nothing for a host that shares its checkpoint folder with the other hosts.
        """

    async def share_checkpoints(self) -> None:
        """Copy the checkpoints of all hosts to every host, while no host trains."""

    @abc.abstractmethod
    def collect_outputs(self) -> None:
        """Copy the remaining checkpoints, then pack models and outputs into the spec's output path.

        Every host has ended when this method is called. The job may have failed.
        """

    @abc.abstractmethod
    def cleanup(self) -> None:
        """Remove everything that is not part of the record.

        This method is called last, also after failures. The method must not take long.
        """


class TuningService(Protocol):
    """The client of a managed service's tuning jobs. Each tuning job is identified by its name.

    Every method may block, and may raise the exceptions of the service's client library, such as botocore's.
    """

    #: Seconds between two polls of the service.
    poll_s: float

    def upload(self, spec: TrainingJobSpec, source: Path) -> None:
        """Upload the code that all trials run."""

    def create(self, request: Mapping[str, Any], since: float) -> None:
        """Create a tuning job, or accept the tuning job that the same request has already created.

        Args:
            request: The request.
            since: The time when the request was first sent, in seconds since the epoch. An older tuning job is not
                accepted.

        Raises:
            JobExistsError: a tuning job of this name exists, but a different request has created it.
        """

    def describe(self, name: str) -> dict[str, Any] | None:
        """Return the service's description of a tuning job as plain data, or None if the tuning job does not exist."""

    def trials(self, name: str) -> list[dict[str, Any]]:
        """Return the summaries of a tuning job's training jobs as plain data. The oldest training job is the
        first one.
        """

    def stop(self, name: str) -> None:
        """Stop a tuning job. Do nothing if the tuning job has ended."""

    def explain(self, error: Exception) -> tuple[str, bool]:
        """Return a description of an error, and whether the same request may succeed later."""


class ManagedService(Backend, BackendQueries):
    """A backend that follows one job on a managed service, such as SageMaker.

    The service runs the job and decides the job's status. The supervisor only follows the job, and never restarts it.
    If the supervisor ends, the job continues, and a new supervisor can follow the job.

    :attr:`running` returns whether the job exists, or may exist, at the managed service. Single hosts cannot be
    terminated, and outputs need not be collected.
    """

    @classmethod
    def check_tuning(cls, spec: TrainingJobSpec, request: Mapping[str, Any]) -> None:
        """Refuse features that the managed service's tuning jobs do not support.

        Args:
            spec: The job of a trial, without the hyperparameters that are tuned.
            request: The request that would create the tuning job.

        Raises:
            ConfigurationError: the managed service does not accept a value.
            UnsupportedError: a feature is not supported. The message has the feature, the reason and the remedy.
        """
        raise UnsupportedError(f"{cls.name} has no tuning jobs.")

    @classmethod
    def tuning_service(cls, options: JobOptions) -> TuningService:
        """Return the client of the managed service's tuning jobs.

        Raises:
            ConfigurationError: the managed service cannot be used with these options.
            UnsupportedError: the managed service has no tuning jobs.
        """
        raise UnsupportedError(f"{cls.name} has no tuning jobs.")

    def collect_outputs(self) -> None:
        """Report that the outputs are stored, because the managed service itself stores the outputs."""
        self.events.put_nowait(OutputsCollected(None))
