"""Define the interface of host providers. A provider supplies the machines, containers or processes that are hosts.

A :class:`HostProvider` declares its capabilities, refuses unsupported jobs, and returns hosts by name. Everything else
that a job does with its hosts is in :class:`estimators.backends.hosts.cluster.HostCluster`: file trees, inputs, Pipe
mode, checkpoints, token, start, stop, loss and outputs. ``HostCluster`` uses the methods ``push``, ``pull`` and ``run``
of :class:`Host`. No host needs the caller's file system. ``docs/adding-a-backend.md`` explains a minimal provider.
"""

from __future__ import annotations

import abc
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from container.contract.environment import Machine
from container.contract.frozen import dataclass
from container.system.running import ProcessEnd as ProcessEnd
from estimators.backends import config, local
from estimators.backends.base import Backend, BackendQueries
from estimators.backends.base import Finding as Finding
from estimators.backends.base import Leftover as Leftover
from estimators.backends.events import LimitMet, ProviderEvents, ValuesNoted, WaitTold
from estimators.backends.placement import ClusterPlacement
from estimators.job.errors import UnsupportedError
from estimators.job.fleets import Capabilities
from estimators.job.request import JobOptions, TrainingJobSpec

if TYPE_CHECKING:
    from container.system.asyncio_loop import AsyncioLoop
    from estimators.backends.hosts.here import LocalPlatform
    from estimators.backends.hosts.membership import MembershipSource


#: A function that is called with each piece of a process's output.
Output = Callable[[bytes], None]
#: A function that shows a text to the user.
Say = Callable[[str], None]


class HostError(Exception):
    """Raised if a host or a provider cannot do what was requested. The message is the reason, in one line."""


class HostLost(HostError):
    """Raised if the job cannot use a host, or cannot use it any more.

    There are three cases:

    * The host is lost: the connection to the host has ended, or the provider has reported that the host is gone. It is
      then not known how the job's processes on the host have ended.
    * The job itself has closed the connection or released the host.
    * The host was never obtained: the provider could not supply a host, or the job has withdrawn its request.
    """


class HostUnavailable(HostError):
    """Raised if the provider cannot supply a host."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The facts that a host reports about itself.

    Attributes:
        root: The job's folder on the host.
        python: The path of the Python interpreter that runs the toolkit and the scripts.
        python_version: The version of this interpreter.
        package: The folder of our ``container`` package on the host.
        interfaces: The addresses of the host's network interfaces, by the interface's name.
        identity: An identifier of the machine that does not depend on names or addresses, or "" if the machine has no
            such identifier.
    """

    root: str
    python: str
    python_version: str
    package: str
    interfaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    identity: str = ""

    def interface_of(self, address: str) -> str | None:
        """Return the name of the network interface that has an address. Return None if no interface has the address."""
        if address.startswith("127."):
            return "lo"
        return next((name for name, own in self.interfaces.items() if own == address), None)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A description of the hosts on which a job would run, for ``plan()``.

    Attributes:
        base_dir: The root of a host's tree. ``{host}`` stands for the host's name.
        python: The path or name of the hosts' Python interpreter.
        package: The folder of the package ``container`` on the hosts.
        interface: The name of the network interface between the hosts, or "" if it is not known in advance.
        cpus: The number of a host's cores.
        gpus: The number of a host's GPUs.
        mpirun: The path or name of ``mpirun`` on the hosts, or None if the hosts have no ``mpirun``.
        connect: For each host's name, the command that is run on this machine to reach the host, as an argv list.
        warnings: Warnings for the user.
        notes: Additional facts to show, such as machine types and prices.
    """

    base_dir: str
    python: str = "python"
    package: str = "container"
    interface: str = "eth0"
    cpus: int = 1
    gpus: int = 0
    mpirun: str | None = "mpirun"
    connect: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class HostProcess(Protocol):
    """A process that runs on a host. Data and signals that are sent after the process has ended are dropped.

    A process may have a lifeline: a descriptor that the process reads in place of standard input. The lifeline ends
    when the connection to the host ends.
    """

    def write(self, data: bytes) -> None:
        """Write data to the process's lifeline. If the process has no lifeline, write to its standard input."""

    def close_input(self) -> None:
        """Close the process's lifeline. If the process has no lifeline, close its standard input."""

    def signal(self, number: int) -> None:
        """Send a signal to the process."""

    async def wait(self) -> ProcessEnd:
        """Wait until the process has ended and its output was passed on. Return how the process has ended.

        Raises:
            HostLost: the host was lost, or :meth:`Host.close` was called, before the end of the process was known.
        """


class Host(abc.ABC):
    """A host that fleetfit is connected to. Paths on the host are relative to the job's folder on the host.

    If the connection to the host ends, because the host is lost or because :meth:`close` is called, every coroutine
    that waits for an answer of the host raises :class:`HostLost`. Coroutines that are called later raise this error at
    once. :meth:`until_lost` and :meth:`until_noticed` never raise this error.

    Attributes:
        name: The host's name in the job.
        address: The address at which the other hosts reach this host.
        caller_address: The address at which this host reaches the machine of the job's supervisor.
        interface: The host's network interface to the other hosts.
        facts: The facts that the host has reported about itself.
    """

    name: str
    address: str
    caller_address: str
    interface: str
    facts: HostFacts

    def __init__(self) -> None:
        import asyncio  # late, because the process that calls fit() imports this module only for a provider's queries

        self._loss, self._notice = asyncio.Event(), asyncio.Event()
        self._loss_reason = ""
        self._notice_s = 0.0

    async def until_lost(self) -> str:
        """Wait until the host is lost, and return the reason. A call of :meth:`close` is not a loss."""
        await self._loss.wait()
        return self._loss_reason

    def lose(self, reason: str) -> None:
        """Record that the host is lost, so that :meth:`until_lost` returns. Only the first reason is kept."""
        if not self._loss.is_set():
            self._loss_reason = reason
            self._loss.set()

    async def until_noticed(self) -> float:
        """Wait until the provider announces that it will take the host away, and return the seconds until then."""
        await self._notice.wait()
        return self._notice_s

    def notice(self, seconds: float) -> None:
        """Record the announcement that the host will be taken away. Only the first announcement is recorded."""
        if not self._notice.is_set():
            self._notice_s = seconds
            self._notice.set()

    @abc.abstractmethod
    async def push(self, source: Path, target: str, *, follow: bool = True) -> None:
        """Copy a file, or the content of a folder, into a folder on the host.

        Args:
            source: The path of the file or folder on this machine.
            target: The folder on the host.
            follow: Whether a link is replaced by the file or folder that it leads to. If False, links are copied as
                links, and links that lead out of the folder are left out.

        Raises:
            HostError: the copying failed. The message has the reason.
        """

    @abc.abstractmethod
    async def pull(self, source: str, target: Path) -> None:
        """Copy the content of a folder on the host into a folder on this machine. Do nothing if the source does not
        exist.

        Args:
            source: The folder on the host.
            target: The folder on this machine.

        Raises:
            HostError: the copying failed. The message has the reason.
        """

    @abc.abstractmethod
    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Output,
        *,
        lifeline: str | None = None,
        listener: str | None = None,
        runtime: str | None = None,
        session: bool = False,
        tidies: bool = False,
        on_errors: Output | None = None,
    ) -> HostProcess:
        """Start a process on the host.

        Args:
            argv: The command.
            env: The environment variables of the process, in addition to the host's environment variables.
            on_output: A function that is called with all bytes of the process's output, in order.
            lifeline: The name of the environment variable with the file descriptor of the process's lifeline.
                :meth:`HostProcess.write` then writes to the lifeline. When the connection to the host ends, a process
                with a lifeline can terminate its own child processes. A process without a lifeline is killed at once.
            listener: The name of the environment variable with the file descriptor of the listening socket, which a
                call of :meth:`listen` has opened before.
            runtime: The name of the environment variable with the path of a private folder for the process's sockets.
                The folder is removed when the process has ended.
            session: Whether the process gets a session of its own.
            tidies: Whether the process gets SIGTERM when the connection to the host ends. The process must be ready for
                the signal from its start.
            on_errors: A function that is called with the process's standard error. The default is ``on_output``.
        """

    @abc.abstractmethod
    async def listen(self) -> int:
        """Listen at a free port of the host's address. A process that is run with ``listener`` inherits the socket.

        Returns:
            The port, or 0 if the host cannot listen at its address.
        """

    @abc.abstractmethod
    async def reach(self, address: str, port: int) -> None:
        """Test whether the host can connect to a port of another host.

        Raises:
            HostError: the host cannot connect. The message has the reason.
        """

    @abc.abstractmethod
    async def list_files(self, path: str) -> Mapping[str, tuple[int, int]]:
        """Return the size and the modification time of each file below a folder, by the file's path in the folder.

        The size is in bytes, and the time in nanoseconds since the epoch.
        """

    @abc.abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Delete files and folders on the host."""

    @abc.abstractmethod
    async def await_files(self, paths: Sequence[str]) -> None:
        """Wait until all the files exist on the host."""

    @abc.abstractmethod
    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """Send SIGKILL to all processes of the job on the host except ``spare``."""

    @abc.abstractmethod
    def close(self) -> None:
        """Terminate all processes of the job on the host, and delete the job's folder on the host."""


@dataclass(frozen=True, kw_only=True)
class ProvidedJob:
    """The job for which a provider supplies hosts, with methods through which the provider reports to the job.

    Attributes:
        loop: The supervisor's event loop.
        spec: The job.
        options: The job's options. ``backend_options`` contains the provider's options.
        found: The values that :meth:`HostProvider.found` has returned in the process that called ``fit()``. Empty if
            the method has returned None.
        protected: The pids of the supervisor's child processes that must not be killed before the supervisor ends.
        backend: The backend that runs the job on the provider's hosts.
        events: The queue for the provider's events.
    """

    loop: AsyncioLoop
    spec: TrainingJobSpec
    options: JobOptions
    found: Mapping[str, Any]
    protected: set[int]
    backend: Backend
    events: ProviderEvents

    def tell(self, text: str) -> None:
        """Show the user why the provider waits for hosts, such as a queue. The text is shown while no host trains."""
        self.events.put_nowait(WaitTold(text))

    def limit(self, text: str) -> None:
        """Stop the job because it has reached a limit of the provider, as if ``max_run`` were reached.

        Args:
            text: The reason, for the user.
        """
        self.events.put_nowait(LimitMet(text))

    def note(self, values: Mapping[str, Any]) -> None:
        """Store values with the job's status."""
        self.events.put_nowait(ValuesNoted(values))


class HostProvider(BackendQueries, abc.ABC):
    """A source of hosts. Each job has its own provider object, which lives in the job's supervisor.

    A subclass overrides the methods for the features that it supports. Every method except :meth:`acquire` has a
    default.

    Args:
        job: The job.

    Attributes:
        name: The provider's name, which is the instance type.
        capabilities: The properties of the provider's hosts. The property ``heartbeats`` is always set, because each
            host runs our toolkit.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def __init__(self, job: ProvidedJob) -> None:
        self.job = job
        self.loop = job.loop
        self.spec = job.spec
        self._starts: Counter[str] = Counter()

    # --- before anything starts ---

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: JobOptions) -> list[str]:
        """Return the reasons why the provider cannot run the job, each with its remedy. The call reserves and starts
        nothing.
        """
        return []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: JobOptions) -> Placement:
        """Return where the job would run. The call starts nothing."""
        return Placement(base_dir=f"/tmp/{spec.name}/hosts/{{host}}/ml")

    @classmethod
    def check(cls, spec: TrainingJobSpec, options: JobOptions) -> None:
        """Refuse input channels that cannot be provided, and features that the provider does not support."""
        for channel in spec.inputs:
            if (refusal := local.channel_refusal(spec, channel)) is not None:
                raise UnsupportedError(f"channel {channel.name!r} on instance_type {cls.name!r}: {refusal}")
        for refusal in cls.validate(spec, options):
            raise UnsupportedError(f"instance_type {spec.instance_type!r}: {refusal}")

    @classmethod
    def placement(cls, spec: TrainingJobSpec, options: JobOptions, record: Path) -> ClusterPlacement:
        """Return where the job would run, from the provider's :meth:`describe`."""
        place = cls.describe(spec, options)
        toolkit = (place.python, "-I", f"{place.package}/__main__.py", "train")
        return ClusterPlacement(
            machine=Machine(
                python=place.python,
                cpus=place.cpus,
                gpus=place.gpus,
                mpirun=place.mpirun,
                container_package=place.package,
            ),
            facts=config.BackendFacts(network_interface=place.interface, instance_type=spec.instance_type),
            base_dir=place.base_dir,
            entry_points={host: (*place.connect.get(host, ()), *toolkit) for host in spec.hosts},
            warnings=place.warnings,
            notes=place.notes,
        )

    # --- hosts ---

    @abc.abstractmethod
    async def acquire(self, name: str) -> Host:
        """Return a host, which may be a new host or one that was used before.

        If the task is cancelled, release all resources that were obtained for the host.

        Raises:
            HostUnavailable: no host can be supplied. The message has the reason.
        """

    def new_root(self, name: str) -> str:
        """Return the path of an unused folder for a host.

        A folder that was used before is not used again: an agent that has lost its connection may still be deleting it.
        """
        self._starts[name] += 1
        count = self._starts[name]
        return f"{self.spec.name if count == 1 else f'{self.spec.name}.{count}'}/hosts/{name}"

    def shared_platform(self) -> LocalPlatform | None:
        """Create the platform that provides the inputs of all hosts. The cluster calls this method if the provider has
        the capability ``shared_machine``. Return None for hosts that are processes on this machine.
        """
        return None

    def release(self, host: Host) -> None:
        """Release a host that the job does not need any more. The method must not take long.

        All processes of the job on the host have ended when this method is called.
        """

    def close(self) -> None:
        """Release all resources. This method is called last for a job. The method must not take long."""

    async def bridge(self, host: Host, other: Host, port: int) -> int:
        """Forward connections between hosts that cannot reach each other. The provider needs the capability
        ``bridges``.

        Args:
            host: The host that connects.
            other: The host that listens.
            port: The port at which ``other`` listens.

        Returns:
            A port of the loopback address of ``host``. The provider forwards connections to this port to ``port`` of
            ``other``.

        Raises:
            HostError: the connections cannot be forwarded. The message has the reason.
        """
        raise NotImplementedError(f"{self.name} has no bridges")

    # --- hosts that join and leave ---

    def membership(self) -> MembershipSource | None:
        """Return a new source that lists the machines for the next attempt of an elastic job.

        Return None if any number of hosts can be acquired.
        """
        return None

    def locate(self, name: str, place: str) -> None:
        """Assign a machine or node to a host, before or after the host is acquired. The provider needs the capability
        ``locates``.
        """
