"""The seam: what a place that has hosts must offer, for everything else to be done for it.

A backend is a :class:`HostProvider`. It says what it can do, refuses what it cannot, and gives hosts by name. What a
job does with its hosts (trees, inputs, Pipe mode, checkpoints, the token, start, stop, loss, outputs) is written once,
in :class:`estimators.backends.hosts.cluster.HostCluster`, over :class:`Host`: ``push``, ``pull`` and ``run``. No host
needs the caller's file system. ``docs/adding-a-backend.md`` walks through the smallest one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from container.system.loop import Loop
from container.system.running import ProcessEnd as ProcessEnd
from estimators.backends.base import Finding as Finding
from estimators.backends.base import Leftover as Leftover
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec

#: None when it went well, else what was wrong, as one line.
Done = Callable[[str | None], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineFacts:
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
        base_dir: The root of a host's tree.
        python: The hosts' interpreter.
        package: The folder of our ``container`` package there.
        interface: The network interface between the hosts.
        cpus: A host's cores.
        gpus: A host's GPUs.
        mpirun: The hosts' ``mpirun``.
        connect: What is run here to reach each host, as an argv list; empty where nothing is.
        warnings: What the user should know.
        notes: What there is to see of it: types, prices.
    """

    base_dir: Callable[[str], str]
    python: str = "python"
    package: str = "container"
    interface: str = "eth0"
    cpus: int = 1
    gpus: int = 0
    mpirun: str | None = "mpirun"
    connect: Callable[[str], Sequence[str]] = lambda host: ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class HostProcess(Protocol):
    """A process that runs on a host. What is told to one that has ended is dropped."""

    def write(self, data: bytes) -> None:
        """Write to its input: its lifeline, if it has one."""

    def close_input(self) -> None:
        """End its input."""

    def signal(self, number: int) -> None:
        """Send it a signal."""


class Host(Protocol):
    """A host that is there. All methods return at once; paths on the host are relative to the job's folder there.

    Attributes:
        name: Its name in the job.
        address: Where the other hosts reach it.
        caller_address: Where it reaches the machine that the job's supervisor runs on.
        interface: Its network interface to the other hosts.
        facts: What it is.
        on_lost: Called with the reason when it is gone; then nothing else is called any more.
        on_notice: Called when the place that it comes from is about to take it: in how many seconds.
    """

    name: str
    address: str
    caller_address: str
    interface: str
    facts: MachineFacts
    on_lost: Callable[[str], None]
    on_notice: Callable[[float], None]

    def push(self, source: Path, target: str, done: Done, *, follow: bool = True) -> None:
        """Copy a file or what is in a folder into a folder of the host's.

        Args:
            source: The file or folder here.
            target: The folder there.
            done: Called with None, or with the reason why not.
            follow: Copy what links lead to; else links that lead out of the folder are left out, and others stay links.
        """

    def pull(self, source: str, target: Path, done: Done) -> None:
        """Copy what is in a folder of the host's into one here; nothing, if it is not there."""

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Callable[[bytes], None],
        on_exit: Callable[[ProcessEnd], None],
        *,
        lifeline: str | None = None,
        listener: str | None = None,
        runtime: str | None = None,
        session: bool = False,
        tidies: bool = False,
        on_errors: Callable[[bytes], None] | None = None,
    ) -> HostProcess:
        """Run a process there.

        Args:
            argv: Its command.
            env: Variables, beside those that the host itself has.
            on_output: Takes what it prints, every byte in its order, before its end is told.
            on_exit: Called when it has ended.
            lifeline: The variable in which it finds the descriptor of its lifeline, which is its input then. Such a
                process is asked to end what it has started when the connection ends; others are killed at once.
            listener: The variable in which it finds the descriptor of the socket of :meth:`listen`.
            runtime: The variable in which it finds a private folder for its sockets, removed at its end.
            session: Whether it leads a session.
            tidies: Whether it gets SIGTERM when the connection ends, and waits for it from its start.
            on_errors: Takes its standard error; default: ``on_output``.
        """

    def listen(self, done: Callable[[int], None]) -> None:
        """Listen at a free port of the host's address, for a process that is then run with ``listener``."""

    def reach(self, address: str, port: int, done: Done) -> None:
        """Say whether a port of another host can be connected to from there; the reason, if not."""

    def list_files(self, path: str, done: Callable[[Mapping[str, tuple[int, int]]], None]) -> None:
        """Say which files there are below a folder: name -> size and time in nanoseconds."""

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders."""

    def await_files(self, paths: Sequence[str], done: Done) -> None:
        """Wait until files are there."""

    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """SIGKILL to everything that was run there but some."""

    def close(self) -> None:
        """Let it go: everything of the job ends there, and its folder is removed."""


class HostProvider(Protocol):
    """Where hosts come from: one for each job, in its supervisor.

    One whose hosts can be left over when everything of a job is killed has a class method ``leftovers``, too, which
    returns a list of :class:`Leftover` for ``fleetfit clean``.

    Args:
        loop: The supervisor's loop.
        spec: The job.
        options: With the provider's own under ``backend_options``.

    Attributes:
        tell: Shows what it waits for (a place in a queue, say) while no host trains; the cluster sets it.
        protected: Children of the supervisor that live until its end, by pid; the cluster sets it.
        limit: Has the job stopped as by ``max_run``, for a reason of the provider's; the cluster sets it.
        note: Keeps values with the job's status; the cluster sets it.
    """

    #: What it is called: the instance type.
    name: ClassVar[str]
    #: With ``heartbeats``, as each of its hosts runs our toolkit.
    capabilities: ClassVar[Capabilities]
    tell: Callable[[str], None]
    protected: set[int]
    limit: Callable[[str], None]
    note: Callable[[Mapping[str, Any]], None]

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None: ...

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse by name what cannot be, before anything is claimed or started: each with reason and remedy."""

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run; starts nothing."""

    def acquire(self, name: str, ready: Callable[[Host], None], failed: Callable[[str], None]) -> None:
        """Get a host, and call one of the two in the loop. It may be new, or one that was kept."""

    def release(self, host: Host) -> None:
        """A host is not needed any more; everything of the job has ended there."""

    def close(self) -> None:
        """Let go of everything; the last call, and quick."""

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """What ``fleetfit doctor`` should say."""

    # A provider that can carry a connection between hosts that do not reach each other also has this:
    #
    # def bridge(self, host: Host, other: Host, port: int, done: Callable[[int, str], None]) -> None:
    #     """Have connections to a port of the host's loopback address lead to a port of another host.
    #
    #     ``done`` gets that port, or 0 and the reason."""
    #
    # A provider that knows which hosts there are for an elastic job says so; otherwise as many are acquired as the job
    # wants:
    #
    # def membership(self) -> MembershipSource | None:
    #     """See :mod:`estimators.backends.hosts.membership`; one for each attempt of the job."""
    #
    # def locate(self, name: str, place: str) -> None:
    #     """Which place a host is to have, before or after it was acquired; of a source that decides."""

    # A provider whose hosts can outlive their jobs' supervisors also has this; clean asks those that have it, and
    # those that are searched by name with the region that was named:
    #
    # @classmethod
    # def leftovers(cls) -> list[Leftover]:
    #     """What there is of all jobs, those that run among them."""
    #
    # One to which it matters where in the caller fit() is called, has these:
    #
    # @classmethod
    # def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
    #     """What there is to know of the process that calls fit(): plain data."""
    #
    # def heed(self, found: dict[str, Any]) -> None:
    #     """What that was, in the job's supervisor, before anything else; empty if it was nothing."""
