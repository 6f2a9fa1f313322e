"""The provider: nodes of allocations, an agent on each by srun."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import socket
import sys
from typing import ClassVar, NamedTuple

from container.contract.strategies import Elastic
from container.system.asyncio_loop import within
from estimators.backends.hosts.child import ChildProcess
from estimators.backends.hosts.provider import (
    Finding,
    Host,
    HostProvider,
    HostUnavailable,
    Leftover,
    Placement,
    ProvidedJob,
)
from estimators.backends.hosts.remote import HostSource, RemoteHost
from estimators.backends.slurm import commands, keeper, partitions, reasons
from estimators.backends.slurm.allocations import AllocationQueue, Refused
from estimators.backends.slurm.options import SlurmOptions
from estimators.job import fleets
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions, TrainingJobSpec

#: The programs of Slurm's that are run here.
PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
#: How long the end of srun, and Slurm's word for why, is waited for when an agent's connection has ended, in seconds.
_WHY_S = 2.0
#: How many of srun's last lines are kept.
_LINES = 20
_INSTALL = (
    "Run fit() where sbatch works (a login node), or install Slurm's commands (Debian: apt-get install slurm-client)."
)


class SlurmProvider(HostProvider):
    """Nodes of a Slurm cluster; see :class:`estimators.backends.hosts.provider.HostProvider`."""

    name: ClassVar[str] = fleets.SLURM
    capabilities = fleets.FLEETS[fleets.SLURM].capabilities

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job)
        self._options = SlurmOptions.of(job.options.backend_options)
        self._queue = AllocationQueue(job.loop, job.protected)
        self._forming: _Allocation | None = None  # for the hosts that are asked for in this turn
        self._allocations: list[_Allocation] = []
        self._again: dict[str, int] = {}  # what Slurm has taken, to be waited for if the job needs it again -> its size
        self._silent: set[str] = set()  # nodes that were lost without a word of Slurm's, which may give them again

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse what Slurm would refuse, or never start."""
        try:
            given = SlurmOptions.of(options.backend_options)
        except ConfigurationError as error:
            return [str(error)]
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing:
            return [f"{', '.join(missing)} cannot be found in PATH. {_INSTALL}"]
        code, said, error_text = keeper.command(["scontrol", "show", "partition", "--oneliner"], seconds=30)
        if code != 0:
            return [f"Slurm does not answer: {error_text}. `scontrol ping` says whether its controller runs."]
        known = {fields["PartitionName"]: fields for fields in map(keeper.parse_fields, said.splitlines()) if fields}
        if (refusal := partitions.refusal(given, spec.instance_count, known)) is not None:
            return [refusal]
        nodes = 1 if _apart(spec) else spec.instance_count
        words = ["sbatch", "--test-only", *given.words(nodes)]
        code, _, error_text = keeper.command(words, "#!/bin/sh\n", seconds=30)
        if code != 0:
            return [f"sbatch refuses such an allocation: {error_text}. The request was {' '.join(given.words(nodes))}."]
        return []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run."""
        given = SlurmOptions.of(options.backend_options)
        _, said, _ = keeper.command(
            ["sinfo", "--noheader", "--format=%c", *([f"--partition={given.partition}"] if given.partition else [])],
            seconds=10,
        )
        cpus = [int(text.rstrip("+")) for text in said.split() if text.rstrip("+").isdigit()]
        asked = given.plain.get("cpus_per_task", "")
        return Placement(
            base_dir=f"/tmp/fleetfit-hosts-{os.getuid()}/{spec.name}/hosts/{{host}}/ml",
            python=given.python,
            package="container",
            interface="",
            cpus=int(asked) if asked.isdigit() else min(cpus, default=1),
            connect=dict.fromkeys(spec.hosts, ("srun", "--nodes=1", "--ntasks=1", "--overlap")),
        )

    # --- hosts ---

    async def acquire(self, name: str) -> Host:
        """Ask for a node; those that are asked for at once come in one allocation, unless the job is elastic."""
        part = self._join(name)
        try:
            await asyncio.wait([part.allocation.running])
            if reason := part.allocation.running.result():
                raise HostUnavailable(reason)
            return await self._start_agent(part)
        except BaseException:
            self._leave(part)
            raise

    def release(self, host: Host) -> None:
        """Let Slurm have the node, with the last one of its allocation."""
        for part in [part for allocation in self._allocations for part in allocation.parts if part.host is host]:
            self._leave(part)

    def close(self) -> None:
        """Leave the queue."""
        self._queue.close()

    # --- allocations ---

    def _join(self, name: str) -> _Part:
        """Give a host a part of the allocation of this turn."""
        allocation = self._forming
        if allocation is None or not allocation.parts or _apart(self.spec):
            allocation = self._forming = _Allocation()
            allocation.running = self.loop.start(self._obtain(allocation))
            self._allocations.append(allocation)
        allocation.parts.append(_Part(self, name, allocation))
        return allocation.parts[-1]

    def _leave(self, part: _Part) -> None:
        """Give up a host's part; with the last one the allocation leaves the queue, or gives its nodes back."""
        allocation = part.allocation
        allocation.parts.remove(part)
        if allocation.parts:
            return
        allocation.running.cancel()
        self._allocations.remove(allocation)
        if self._options.requeue and allocation.taken:
            self._again[allocation.job] = allocation.size
        elif allocation.job:
            self._queue.cancel(allocation.job)

    async def _obtain(self, allocation: _Allocation) -> str:
        """Wait in the queue until an allocation runs, and give each host its node.

        Returns:
            Why there is none; "" if it runs.
        """
        await asyncio.sleep(0)  # until everybody has joined
        self._forming = None
        size = allocation.size = len(allocation.parts)
        back = next((job for job, nodes in self._again.items() if nodes == size), "")
        self._again.pop(back, None)
        try:
            while True:
                allocation.job = back or await self._submit(size)
                nodes = await self._wait(allocation.job, size, again=bool(back))
                if nodes and not self._taken() & {node.name for node in nodes}:
                    break
                # It did not come back; or it is a part of a node, and the other part is ours as well.
                self._queue.cancel(allocation.job)
                back = ""
        except HostUnavailable as error:
            return str(error)
        for part, node in zip(allocation.parts, nodes, strict=False):
            part.node = node
        allocation.first = nodes[0]
        return ""

    async def _submit(self, size: int) -> str:
        """Submit an allocation of so many nodes, other ones than the job has or has lost; return its number."""
        while True:
            words = commands.sbatch(self._options, self.spec.name, size, self._taken() | self._silent)
            try:
                return await self._queue.submit(words, commands.SCRIPT)
            except Refused as error:
                if not self._silent:
                    raise HostUnavailable(f"sbatch refused the allocation: {error}") from None
                self._silent.clear()  # without them there are not enough, and Slurm believes that they are well

    async def _wait(self, job: str, size: int, again: bool) -> list[_Node]:
        """Wait until an allocation runs, and return its nodes; none if it should come back and does not."""
        with self._queue.watch(job, again=again) as answers:
            while (event := await answers.get())["event"] == "pending":
                place = f", at place {event['position']} of its partition's queue" if event["position"] else ""
                self.job.tell(f"Slurm job {job} is pending{place}: {reasons.why_pending(event['reason'])}.")
        if event["event"] == "over":
            if again:
                return []
            why = reasons.why_over(event["state"], event["reason"])
            raise HostUnavailable(f"Slurm job {job} ended before it ran: {why}")
        nodes = [_Node(**node) for node in event["nodes"]]
        if len(nodes) < size:  # scontrol did not answer, or words for sbatch asked for others
            raise HostUnavailable(f"Slurm job {job} runs on {len(nodes)} nodes, but {size} were requested")
        return nodes

    def _taken(self) -> set[str]:
        """Return the nodes that the job has."""
        return {part.node.name for allocation in self._allocations for part in allocation.parts if part.node}

    # --- agents ---

    async def _start_agent(self, part: _Part) -> RemoteHost:
        """Start the agent on a host's node.

        Raises:
            HostUnavailable: it cannot be started; with the reason.
        """
        assert part.node is not None
        try:
            part.host = await self._connect(part, part.node)
        except HostUnavailable as error:
            raise HostUnavailable(f"{part.node.name} (Slurm job {part.allocation.job}): {error}") from None
        if part.allocation.taken:  # it was announced while the agent started
            self.heed(part)
        return part.host

    async def _connect(self, part: _Part, node: _Node) -> RemoteHost:
        options, job = self._options, part.allocation.job
        if not node.address:
            raise HostUnavailable("its address is not known here. Call fit() on a machine that reaches the nodes")
        try:
            caller = _own_address(node.address)
        except OSError as error:
            raise HostUnavailable(f"there is no route to {node.address}: {error.strerror}") from None
        words = commands.srun(options, job, node.name, with_script=node is part.allocation.first)
        try:
            # It ends when the agent does, and that does when we are gone. Killed, it would tell the node later, and
            # would have Slurm kill the agent, which tidies up.
            environment, protected = keeper.environment(), self.job.protected
            srun = part.srun = ChildProcess(self.loop, words, env=environment, cwd="/", protected=protected)
        except OSError as error:
            raise HostUnavailable(f"srun could not be started: {error.strerror}") from None
        host = await RemoteHost.connect(
            self.loop,
            part.name,
            srun.output,
            srun.input,
            root=self.new_root(part.name),
            address=node.address,
            caller_address=caller,
            interface="",
            silence=options.silence,
            source=part,
        )
        theirs, ours = host.facts.python_version.split(".")[:2], [str(number) for number in sys.version_info[:2]]
        if theirs != ours:
            host.close()
            raise HostUnavailable(
                f"{options.python} is Python {'.'.join(theirs)}, but fit() runs on {'.'.join(ours)}. Name another "
                "interpreter with backend_options={'python': …}"
            )
        return host

    def heed(self, part: _Part) -> None:
        """Find out what a signal of an agent was for."""
        self.loop.start(self._heed(part))

    async def _heed(self, part: _Part) -> None:
        """Ask Slurm what an agent's signal was for: it will take the node, or it ends what somebody has cancelled."""
        allocation = part.allocation
        event = await self._queue.look(allocation.job)
        meant = reasons.what_signalled(event["state"], event["left"], part.said)
        if isinstance(meant, reasons.Loss):
            allocation.taken |= meant.taken
            if part.host is not None:
                part.host.lose(meant.reason)
            return
        allocation.taken = True
        for host in [other.host for other in allocation.parts if other.host is not None]:
            host.notice(meant)  # all at once, though their agents hear of it one after the other

    async def explain(self, part: _Part, reason: str) -> str:
        """Return why an agent's connection has ended: srun says so as it ends."""
        assert part.node is not None and part.srun is not None
        with contextlib.suppress(asyncio.TimeoutError):
            await within(_WHY_S, part.srun.wait())
        loss = reasons.why_lost(part.said, reason)
        part.allocation.taken |= loss.taken
        if loss.silent:
            self._silent.add(part.node.name)
        return loss.reason

    # --- what there is of Slurm here ---

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether there is a Slurm."""
        from estimators.backends.slurm import diagnosis

        return diagnosis.findings()

    @classmethod
    def leftovers(cls, region: str = "") -> list[Leftover]:
        """Return this user's allocations for jobs."""
        if not keeper.configured():
            return []
        words = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%A %j"]
        _, said, _ = keeper.command(words, seconds=10)
        found: list[Leftover] = []
        for line in said.splitlines():
            job, _, name = line.partition(" ")
            if name.startswith(commands.PREFIX):
                name = name.removeprefix(commands.PREFIX)
                found.append(AllocationLeftover(name=f"Slurm job {job}", job=name, number=job))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocationLeftover(Leftover):
    """An allocation.

    Attributes:
        number: Slurm's number of it.
    """

    number: str

    def remove(self) -> None:
        """Cancel it."""
        code, _, reason = keeper.command(["scancel", "--quiet", self.number], seconds=30)
        if code != 0:
            raise OSError(f"scancel {self.number}: {reason}")


class _Node(NamedTuple):
    """A node; its address is "" where it is not known here."""

    name: str
    address: str


class _Allocation:
    """An allocation for hosts that were asked for at once.

    Attributes:
        running: Waits until it runs.
        parts: What its hosts have of it, as long as they need it.
        size: How many nodes were asked for.
        job: Its number in Slurm, when it has one.
        first: The node on which its script runs, when it runs.
        taken: Whether Slurm takes it, or has taken it.
    """

    running: asyncio.Task[str]

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.size = 0
        self.job = ""
        self.first: _Node | None = None
        self.taken = False


class _Part(HostSource):
    """What a host has of an allocation.

    Attributes:
        name: The host's name.
        allocation: The allocation.
        node: Its node, when the allocation runs.
        srun: The srun of its agent, when that was started.
        host: The host, when its agent has answered.
    """

    hears_signals = True

    def __init__(self, provider: SlurmProvider, name: str, allocation: _Allocation) -> None:
        self._provider = provider
        self.name = name
        self.allocation = allocation
        self.node: _Node | None = None
        self.srun: ChildProcess | None = None
        self.host: RemoteHost | None = None

    async def explain(self, reason: str) -> str:
        """Ask srun why the agent's connection has ended."""
        return await self._provider.explain(self, reason)

    def signalled(self, number: int) -> None:
        """Find out what the signal was for."""
        self._provider.heed(self)

    @property
    def said(self) -> list[str]:
        """Return the last lines that the srun of its agent has said itself."""
        text = self.srun.errors.decode("utf-8", "replace") if self.srun is not None else ""
        return [line.strip() for line in text.splitlines() if line.strip()][-_LINES:]


def _apart(spec: TrainingJobSpec) -> bool:
    """Whether each host has an allocation of its own: Slurm ends a whole allocation with its first node."""
    return isinstance(spec.strategy, Elastic)


def _own_address(address: str) -> str:
    """Return the address that a node sees of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((address, 9))
        return str(sock.getsockname()[0])
