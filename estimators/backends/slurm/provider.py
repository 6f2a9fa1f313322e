"""Provide hosts on the nodes of Slurm allocations. srun starts an agent on each node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from typing import ClassVar, NamedTuple

from container.contract.frozen import dataclass
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

#: The Slurm commands that are run on this machine.
PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
#: Seconds to wait for srun's end and its error messages when the connection to an agent has ended.
_WHY_S = 2.0
#: Number of the last lines of srun's error messages in which a reason is searched.
_LINES = 20
_INSTALL = (
    "Run fit() where sbatch works (a login node), or install Slurm's commands (Debian: apt-get install slurm-client)."
)


class SlurmProvider(HostProvider):
    """A provider of hosts on Slurm nodes.

    See :class:`estimators.backends.hosts.provider.HostProvider` for the interface.
    """

    name: ClassVar[str] = fleets.SLURM
    capabilities = fleets.FLEETS[fleets.SLURM].capabilities

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job)
        self._options = SlurmOptions.of(job.options.backend_options)
        self._queue = AllocationQueue(job.loop, job.protected)
        self._forming: _Allocation | None = None  # for hosts requested in this iteration of the event loop
        self._allocations: list[_Allocation] = []
        self._again: dict[str, int] = {}  # allocation that Slurm has taken away and requeues -> number of its nodes
        self._silent: set[str] = set()  # lost nodes that Slurm does not report as failed and may allocate again

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Return the reasons why Slurm would refuse the job or never start it."""
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
        """Return the placement of the job's hosts on Slurm nodes."""
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
        """Acquire a node for a host.

        Hosts that are requested at the same time share one allocation. In an elastic job, each host has its own
        allocation.

        Raises:
            HostUnavailable: Slurm does not provide a node, or the agent cannot be started. The message has the reason.
        """
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
        """Remove a host from its allocation. If no hosts remain, cancel the allocation, unless Slurm requeues it."""
        for part in [part for allocation in self._allocations for part in allocation.parts if part.host is host]:
            self._leave(part)

    def close(self) -> None:
        """Make the keeper, the process that runs Slurm's commands, cancel all allocations, without waiting."""
        self._queue.close()

    # --- allocations ---

    def _join(self, name: str) -> _Part:
        """Add a host to the allocation that is being formed. Return the host's part, which stands for one node."""
        allocation = self._forming
        if allocation is None or not allocation.parts or _apart(self.spec):
            allocation = self._forming = _Allocation()
            allocation.running = self.loop.start(self._obtain(allocation))
            self._allocations.append(allocation)
        allocation.parts.append(_Part(self, name, allocation))
        return allocation.parts[-1]

    def _leave(self, part: _Part) -> None:
        """Remove a host's part from its allocation.

        If no parts remain, cancel the allocation. An allocation that Slurm requeues is not cancelled, because later
        hosts can use it.
        """
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
        """Wait in Slurm's queue until an allocation runs, and assign one of its nodes to each host.

        Returns:
            The reason why no allocation runs, or "" if the allocation runs.
        """
        await asyncio.sleep(0)  # lets the other hosts of this iteration join
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
                # Slurm did not requeue the allocation, or one of its nodes already runs another host of this job.
                self._queue.cancel(allocation.job)
                back = ""
        except HostUnavailable as error:
            return str(error)
        for part, node in zip(allocation.parts, nodes, strict=False):
            part.node = node
        allocation.first = nodes[0]
        return ""

    async def _submit(self, size: int) -> str:
        """Submit an allocation of ``size`` nodes, and return the number of its Slurm job.

        Exclude the nodes that the job already uses, and lost nodes that Slurm still considers healthy. If sbatch then
        refuses the allocation, permit the lost nodes again.

        Raises:
            HostUnavailable: sbatch refuses the allocation.
        """
        while True:
            words = commands.sbatch(self._options, self.spec.name, size, self._taken() | self._silent)
            try:
                return await self._queue.submit(words, commands.SCRIPT)
            except Refused as error:
                if not self._silent:
                    raise HostUnavailable(f"sbatch refused the allocation: {error}") from None
                self._silent.clear()  # the remaining nodes are too few; Slurm considers these healthy

    async def _wait(self, job: str, size: int, again: bool) -> list[_Node]:
        """Wait until an allocation runs, and return its nodes.

        If ``again`` is true and the allocation has ended, return an empty list.

        Args:
            job: The number of the allocation's Slurm job.
            size: The number of nodes that were requested.
            again: Whether Slurm should first requeue the allocation.

        Raises:
            HostUnavailable: the allocation ended before it ran, or it has fewer than ``size`` nodes.
        """
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
        if len(nodes) < size:  # scontrol did not answer, or options of sbatch changed the number
            raise HostUnavailable(f"Slurm job {job} runs on {len(nodes)} nodes, but {size} were requested")
        return nodes

    def _taken(self) -> set[str]:
        """Return the names of the nodes that the job uses."""
        return {part.node.name for allocation in self._allocations for part in allocation.parts if part.node}

    # --- agents ---

    async def _start_agent(self, part: _Part) -> RemoteHost:
        """Start the agent on a host's node, and return the host.

        Raises:
            HostUnavailable: the agent cannot be started. The message has the reason.
        """
        assert part.node is not None
        try:
            part.host = await self._connect(part, part.node)
        except HostUnavailable as error:
            raise HostUnavailable(f"{part.node.name} (Slurm job {part.allocation.job}): {error}") from None
        if part.allocation.taken:  # the notice was received while the agent was starting
            self.loop.start(self.heed(part))
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
            # The supervisor must not kill srun: Slurm would then kill the agent, which has to clean up. The agent exits
            # when this process has ended, and srun exits together with the agent.
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

    async def heed(self, part: _Part) -> None:
        """Ask Slurm why an agent has received a signal, and handle the signal.

        Slurm's answer shows whether the node will be taken away or the host is lost already.

        Args:
            part: The part of the allocation on whose node the agent runs.
        """
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
            host.notice(meant)  # notify all hosts now; their agents receive the signal one after the other

    async def explain(self, part: _Part, reason: str) -> str:
        """Return why an agent's connection has ended. srun's last lines often contain the reason.

        Args:
            part: The host's part of an allocation.
            reason: The reason why the connection to the agent has ended, as the connection reports it.
        """
        assert part.node is not None and part.srun is not None
        with contextlib.suppress(asyncio.TimeoutError):
            await within(_WHY_S, part.srun.wait())
        loss = reasons.why_lost(part.said, reason)
        part.allocation.taken |= loss.taken
        if loss.silent:
            self._silent.add(part.node.name)
        return loss.reason

    # --- diagnosis and leftovers ---

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Return a finding about Slurm for ``fleetfit doctor``."""
        from estimators.backends.slurm import diagnosis

        return diagnosis.findings()

    @classmethod
    def leftovers(cls, region: str = "") -> list[Leftover]:
        """Return the Slurm jobs of the current user that fleetfit has submitted, for ``fleetfit clean``."""
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


@dataclass(frozen=True, kw_only=True)
class AllocationLeftover(Leftover):
    """An allocation that a job has left behind.

    Attributes:
        number: The number of the allocation's Slurm job.
    """

    number: str

    def remove(self) -> None:
        """Cancel the allocation."""
        code, _, reason = keeper.command(["scancel", "--quiet", self.number], seconds=30)
        if code != 0:
            raise OSError(f"scancel {self.number}: {reason}")


class _Node(NamedTuple):
    """A node of an allocation. The address is "" if this machine cannot resolve the node's name."""

    name: str
    address: str


class _Allocation:
    """An allocation for hosts that were requested at the same time.

    Attributes:
        running: The task that waits until the allocation runs.
        parts: The parts of the hosts that still need the allocation.
        size: The number of requested nodes.
        job: The number of the allocation's Slurm job, or "" until the allocation was submitted.
        first: The node of the allocation's batch script, or None until the allocation runs.
        taken: Whether Slurm has taken the allocation away, or has announced that it will take the allocation away.
    """

    running: asyncio.Task[str]

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.size = 0
        self.job = ""
        self.first: _Node | None = None
        self.taken = False


class _Part(HostSource):
    """A host's part of an allocation: the host's node, and the srun process on this machine that starts the agent.

    Attributes:
        name: The host's name.
        allocation: The allocation.
        node: The host's node, or None until the allocation runs.
        srun: The srun process that runs the host's agent, or None until the process was started.
        host: The host, or None until its agent has answered.
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
        """Return why the agent's connection has ended, from srun's last lines."""
        return await self._provider.explain(self, reason)

    def signalled(self, number: int) -> None:
        """Start a task that asks Slurm for the reason of the signal, and handles the signal."""
        self._provider.loop.start(self._provider.heed(self))

    @property
    def said(self) -> list[str]:
        """Return the last lines that the agent's srun process has printed to standard error."""
        text = self.srun.errors.decode("utf-8", "replace") if self.srun is not None else ""
        return [line.strip() for line in text.splitlines() if line.strip()][-_LINES:]


def _apart(spec: TrainingJobSpec) -> bool:
    """Return whether each host of the job gets its own allocation. This is the case if the job is elastic.

    If several hosts shared an allocation, the end of the agent on the first node would end the allocation for all
    hosts.
    """
    return isinstance(spec.strategy, Elastic)


def _own_address(address: str) -> str:
    """Return the address of this machine that a node at ``address`` can connect to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((address, 9))
        return str(sock.getsockname()[0])
