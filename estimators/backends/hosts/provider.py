"""The seam: what a place that has hosts must offer, for everything else to be done for it.

A backend is a :class:`HostProvider`. It says what it can do, refuses what it cannot, and gives hosts by name. What a
job does with its hosts (trees, inputs, Pipe mode, checkpoints, the token, start, stop, loss, outputs) is written once,
in :class:`estimators.backends.hosts.cluster.HostCluster`, over :class:`Host`: ``push``, ``pull`` and ``run``. No host
needs the caller's file system. ``docs/adding-a-backend.md`` walks through the smallest one.
"""

from __future__ import annotations

import abc
import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from container.system.asyncio_loop import AsyncioLoop
from container.system.running import ProcessEnd as ProcessEnd
from estimators.backends.base import Finding as Finding
from estimators.backends.base import Leftover as Leftover
from estimators.backends.events import LimitMet, ProviderEvents, ValuesNoted, WaitTold
from estimators.job.fleets import Capabilities
from estimators.job.request import JobOptions, TrainingJobSpec

if TYPE_CHECKING:
    from estimators.backends.hosts.membership import MembershipSource


#: Takes what a process prints, piece by piece.
Output = Callable[[bytes], None]
#: Shows the user a text.
Say = Callable[[str], None]


class HostError(Exception):
    """Something that was asked of a host, or of a provider, cannot be done. The message is the reason, as one line."""


class HostLost(HostError):
    """The host is gone, and with it everything that ran there."""


class HostUnavailable(HostError):
    """The provider has no host for this name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What a host has told of itself.

    Attributes:
        root: The job's folder there.
        python: The interpreter that runs the toolkit and the scripts.
        python_version: Its version.
        package: The folder of our ``container`` package there.
        hostname: What it calls itself.
        cpus: Cores that the job may use.
        gpus: Its GPUs.
        processor: Its kind of processor, as ``uname -m`` says it.
        interfaces: Its network interfaces' addresses, by name.
        identity: What it is known by, whatever its name or address; empty where that is not known.
    """

    root: str
    python: str
    python_version: str
    package: str
    hostname: str = ""
    cpus: int = 1
    gpus: int = 0
    processor: str = ""
    interfaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    identity: str = ""

    def interface_of(self, address: str) -> str | None:
        """Return the interface that has an address; None if none has."""
        if address.startswith("127."):
            return "lo"
        return next((name for name, own in self.interfaces.items() if own == address), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a job would run, for ``plan()``.

    Attributes:
        base_dir: The root of a host's tree; ``{host}`` stands for the host's name.
        python: The hosts' interpreter.
        package: The folder of our ``container`` package there.
        interface: The network interface between the hosts.
        cpus: A host's cores.
        gpus: A host's GPUs.
        mpirun: The hosts' ``mpirun``.
        connect: What is run here to reach each host, as an argv list, by the host's name.
        warnings: What the user should know.
        notes: What there is to see of it: types, prices.
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
    """A process that runs on a host. Anything that is sent to one that has ended is dropped."""

    def write(self, data: bytes) -> None:
        """Write to its input: its lifeline, if it has one."""

    def close_input(self) -> None:
        """End its input."""

    def signal(self, number: int) -> None:
        """Send it a signal."""

    async def wait(self) -> ProcessEnd:
        """Return how it has ended, after all that it printed was given.

        Raises:
            HostLost: the host is gone.
        """


class Host(abc.ABC):
    """A host that is there. Paths on the host are relative to the job's folder there.

    Every coroutine raises :class:`HostLost` if the host is lost meanwhile, and at once if it was lost before.

    Attributes:
        name: Its name in the job.
        address: Where the other hosts reach it.
        caller_address: Where it reaches the machine that the job's supervisor runs on.
        interface: Its network interface to the other hosts.
        facts: Facts that it has told of itself.
    """

    name: str
    address: str
    caller_address: str
    interface: str
    facts: HostFacts

    def __init__(self) -> None:
        self._loss, self._notice = asyncio.Event(), asyncio.Event()
        self._loss_reason = ""
        self._notice_s = 0.0

    async def until_lost(self) -> str:
        """Wait until the host is gone, and return the reason. A host that was closed is not lost."""
        await self._loss.wait()
        return self._loss_reason

    def lose(self, reason: str) -> None:
        """Note that the host is gone; the first reason counts."""
        if not self._loss.is_set():
            self._loss_reason = reason
            self._loss.set()

    async def until_noticed(self) -> float:
        """Wait until the place that the host comes from is about to take it, and return in how many seconds."""
        await self._notice.wait()
        return self._notice_s

    def notice(self, seconds: float) -> None:
        """Note that the place that the host comes from is about to take it; the first notice counts."""
        if not self._notice.is_set():
            self._notice_s = seconds
            self._notice.set()

    @abc.abstractmethod
    async def push(self, source: Path, target: str, *, follow: bool = True) -> None:
        """Copy a file, or the content of a folder, into a folder of the host's.

        Args:
            source: The file or folder here.
            target: The folder there.
            follow: Copy what links lead to; else links that lead out of the folder are left out, and others stay links.

        Raises:
            HostError: with the reason.
        """

    @abc.abstractmethod
    async def pull(self, source: str, target: Path) -> None:
        """Copy the content of a folder of the host's into one here; nothing, if it is not there.

        Raises:
            HostError: with the reason.
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
        """Run a process there.

        Args:
            argv: Its command.
            env: Variables, beside those that the host itself has.
            on_output: Takes what it prints, every byte in its order.
            lifeline: The variable in which it finds the descriptor of its lifeline, which is its input then. Such a
                process is asked to end what it has started when the connection ends; others are killed at once.
            listener: The variable in which it finds the descriptor of the socket of :meth:`listen`.
            runtime: The variable in which it finds a private folder for its sockets, removed at its end.
            session: Whether it leads a session.
            tidies: Whether it gets SIGTERM when the connection ends, and waits for it from its start.
            on_errors: Takes its standard error; default: ``on_output``.
        """

    @abc.abstractmethod
    async def listen(self) -> int:
        """Listen at a free port of the host's address, for a process that is then run with ``listener``.

        Returns:
            The port; 0 if the host cannot listen there.
        """

    @abc.abstractmethod
    async def reach(self, address: str, port: int) -> None:
        """Connect from there to a port of another host, to see whether that is possible.

        Raises:
            HostError: it is not; with the reason.
        """

    @abc.abstractmethod
    async def list_files(self, path: str) -> Mapping[str, tuple[int, int]]:
        """Return the files below a folder: name -> size in bytes and time of the last change in nanoseconds."""

    @abc.abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders."""

    @abc.abstractmethod
    async def await_files(self, paths: Sequence[str]) -> None:
        """Wait until files are there."""

    @abc.abstractmethod
    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """Send SIGKILL to everything that was run there but some."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let it go: everything of the job ends there, and its folder is removed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProvidedJob:
    """The job that a provider has hosts for, and what the provider may tell it.

    Attributes:
        loop: The supervisor's loop.
        spec: The job.
        options: Its options, with the provider's own under ``backend_options``.
        found: What :meth:`HostProvider.found` has returned in the process that called ``fit()``; empty if nothing.
        protected: Children of the supervisor that must live until its end, by pid.
        events: Takes what the provider tells.
    """

    loop: AsyncioLoop
    spec: TrainingJobSpec
    options: JobOptions
    found: Mapping[str, Any]
    protected: set[int]
    events: ProviderEvents

    def tell(self, text: str) -> None:
        """Show what the provider waits for (a place in a queue, say) while no host trains."""
        self.events.put_nowait(WaitTold(text))

    def limit(self, text: str) -> None:
        """Have the job stopped as by ``max_run``, with the words for the reason."""
        self.events.put_nowait(LimitMet(text))

    def note(self, values: Mapping[str, Any]) -> None:
        """Keep values with the job's status."""
        self.events.put_nowait(ValuesNoted(values))


class HostProvider(abc.ABC):
    """Where hosts come from: one object for each job, in its supervisor.

    A backend overrides what it has; everything but :meth:`acquire` has a default.

    Args:
        job: The job.

    Attributes:
        name: What the provider is called: the instance type.
        capabilities: What its hosts are like, with ``heartbeats``, as each of them runs our toolkit.
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
        """Return why the job cannot run here, each reason with its remedy. Called before anything is claimed."""
        return []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: JobOptions) -> Placement:
        """Return where the job would run. Starts nothing."""
        return Placement(base_dir=f"/tmp/{spec.name}/hosts/{{host}}/ml")

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: JobOptions) -> dict[str, Any]:
        """Return the provider's options as they mean the same on another machine.

        Raises:
            ConfigurationError: they are wrong, or something that they name is not there.
        """
        return dict(options.backend_options)

    @classmethod
    def patient(cls, options: JobOptions) -> dict[str, Any]:
        """Return the provider's options for a job that waits for hosts that others have: a tuner's trial."""
        return dict(options.backend_options)

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """Return what the provider has to know of the process that calls ``fit()``, as plain data; None for nothing."""
        return None

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return what jobs have left where their hosts were, for ``fleetfit clean``, those that run among them.

        Args:
            region: Where to look, with the capability ``searched_by_name``; "": where its tools look by themselves.
        """
        return ()

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        """Return what ``fleetfit doctor`` should say."""
        return ()

    # --- hosts ---

    @abc.abstractmethod
    async def acquire(self, name: str) -> Host:
        """Return a host, a new one or one that was kept. Cancelling gives back what was obtained for it.

        Raises:
            HostUnavailable: there is none; with the reason.
        """

    def new_root(self, name: str) -> str:
        """Return an unused folder for a host: an agent that was cut off may still be removing its own."""
        self._starts[name] += 1
        count = self._starts[name]
        return f"{self.spec.name if count == 1 else f'{self.spec.name}.{count}'}/hosts/{name}"

    def release(self, host: Host) -> None:  # noqa: B027 - a default
        """Give back a host that is not needed any more; everything of the job has ended there. Must be quick."""

    def close(self) -> None:  # noqa: B027 - a default
        """Let go of everything. The last call; must be quick."""

    async def bridge(self, host: Host, other: Host, port: int) -> int:
        """Forward connections between hosts that do not reach each other, with the capability ``bridges``.

        Returns:
            A port of the host's loopback address, from which connections lead to ``port`` of the other host.

        Raises:
            HostError: with the reason.
        """
        raise NotImplementedError(f"{self.name} has no bridges")

    # --- hosts that come and go ---

    def membership(self) -> MembershipSource | None:
        """Return the source that knows which hosts there are for an elastic job, a new one for each attempt.

        None where as many hosts can be acquired as the job wants.
        """
        return None

    def locate(self, name: str, place: str) -> None:  # noqa: B027 - a default
        """Set the place that a host is to have, before or after it is acquired; with the capability ``locates``."""
