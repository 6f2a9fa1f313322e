"""The provider: nodes of allocations, an agent on each by srun."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar

from container.contract.names import unknown
from container.contract.strategies import Elastic
from container.system import processes
from container.system.loop import Loop
from estimators.backends.hosts.provider import Finding, Host, Leftover, Placement
from estimators.backends.hosts.remote import RemoteHost
from estimators.backends.slurm import keeper
from estimators.backends.slurm.allocations import AGENT, SCRIPT, Event, Queue
from estimators.backends.slurm.options import SlurmOptions, minutes
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec

Ready = Callable[[Host], None]
Failed = Callable[[str], None]

#: The programs of Slurm's that are run here.
PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
#: What every allocation's name begins with.
PREFIX = "fleetfit-"
#: How long the end of srun, and Slurm's word for why, is waited for when an agent's connection has ended, in seconds.
_WHY_S = 2.0
#: How long before Slurm takes a node its host is given up, in seconds.
_MARGIN_S = 1.0
#: A notice whose length Slurm does not say, in seconds.
_NOTICE_S = 30.0
#: How many of srun's last lines are kept.
_LINES = 20
#: What it says on every cluster that cannot bind to CPUs, and does not mean anything here.
_NOISE = ("lacks support for cpu binding",)
_INSTALL = (
    "Run fit() where sbatch works (a login node), or install Slurm's commands (Debian: apt-get install slurm-client)."
)

_ENVIRONMENT = (
    "Install the same version of fleetfit on the nodes, for example in an environment in a folder that the nodes "
    "share, and name the interpreter of this environment with backend_options={'python': …}"
)

#: What srun says of an allocation that has ended, and the state.
_SAID = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}
#: What our own words on the node say of an interpreter that will not do.
_UNUSABLE = ("has no fleetfit", "there is no /")
#: Lines of srun's that say that it has ended, and not why.
_EMPTY = ("Job step aborted", "Exited with exit code", ": Killed", ": Terminated", "Timed out waiting for job step")

#: Why an allocation has ended, by its state.
_ENDS = {
    "TIMEOUT": "the allocation has reached its time limit; request more with backend_options={'time': …}",
    "PREEMPTED": "Slurm has given its node to another job",
    "CANCELLED": "the allocation was cancelled (scancel)",
    "NODE_FAIL": "its node has failed",
    "OUT_OF_MEMORY": "it used more memory than requested; request more with backend_options={'mem': …}",
    "DEADLINE": "the allocation's deadline has passed",
    "BOOT_FAIL": "its node could not be booted",
}


class SlurmProvider:
    """Nodes of a Slurm cluster; see :class:`estimators.backends.hosts.provider.HostProvider`."""

    name: ClassVar[str] = "slurm"
    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True)

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None:
        self.tell: Callable[[str], None] = lambda text: None
        self.protected: set[int] = set()
        self.loop = loop
        self.spec = spec
        self.options = SlurmOptions.of(options.backend_options)
        self._queue: Queue | None = None
        self._wanted: list[_Wanted] = []
        self._allocations: list[_Allocation] = []
        self._again: list[_Allocation] = []  # taken by Slurm, to be waited for if the job needs them again
        self._of: dict[str, _Allocation] = {}  # host -> where it is from
        self._starts: dict[str, int] = {}  # host -> how often it was started
        self.silent: set[str] = set()  # nodes that were lost without a word of Slurm's, which may give them again
        self._closed = False

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
        partitions = {
            fields["PartitionName"]: fields for fields in map(keeper.parse_fields, said.splitlines()) if fields
        }
        refusal = _partition_refusal(given, spec.instance_count, partitions)
        if refusal is not None:
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
            base_dir=lambda host: f"/tmp/fleetfit-hosts-{os.getuid()}/{spec.name}/hosts/{host}/ml",
            python=given.python,
            package="container",
            interface="",
            cpus=int(asked) if asked.isdigit() else min(cpus, default=1),
            connect=lambda host: ("srun", "--nodes=1", "--ntasks=1", "--overlap"),
        )

    # --- hosts ---

    def acquire(self, name: str, ready: Ready, failed: Failed) -> None:
        """Ask for a node; those that are asked for at once come in one allocation, unless the job is elastic."""
        self._wanted.append(_Wanted(name, ready, failed))
        if len(self._wanted) == 1:
            self.loop.call_later(0, self._submit)

    def _submit(self) -> None:
        wanted, self._wanted = self._wanted, []
        if self._closed:
            return
        groups = [[one] for one in wanted] if _apart(self.spec) else [wanted]
        for group in groups:
            allocation = next((one for one in self._again if one.size == len(group)), None)
            if allocation is not None:
                self._again.remove(allocation)
            else:
                allocation = _Allocation(self, len(group))
            self._allocations.append(allocation)
            for one in group:
                self._of[one.name] = allocation
            allocation.submit(group)

    @property
    def queue(self) -> Queue:
        """The queue, by way of the job's keeper."""
        if self._queue is None:
            self._queue = Queue(self.loop, self.protected)
        return self._queue

    def taken(self) -> set[str]:
        """Return the nodes that the job has."""
        return {node for allocation in self._allocations for node in allocation.nodes}

    def root(self, host: str) -> str:
        """Return a folder for a host that no agent has had: one that is cut off may still remove its own."""
        count = self._starts[host] = self._starts.get(host, 0) + 1
        job = self.spec.name if count == 1 else f"{self.spec.name}.{count}"
        return f"{job}/hosts/{host}"

    def over(self, allocation: _Allocation) -> None:
        """Nothing of an allocation is needed any more."""
        if allocation in self._allocations:
            self._allocations.remove(allocation)
            if self.options.requeue and allocation.taken and allocation.job is not None:
                self._again.append(allocation)
            else:
                allocation.cancel()

    def release(self, host: Host) -> None:
        """Let Slurm have the node, with the last one of its allocation."""
        allocation = self._of.pop(host.name, None)
        if allocation is not None:
            allocation.release(host.name)

    def close(self) -> None:
        """Leave the queue."""
        self._closed = True
        if self._queue is not None:
            self._queue.close()

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether there is a Slurm."""
        from estimators.backends.slurm import diagnosis

        return diagnosis.findings()

    @classmethod
    def leftovers(cls) -> list[Leftover]:
        """Return this user's allocations for jobs."""
        if not keeper.configured():
            return []
        words = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%A %j"]
        _, said, _ = keeper.command(words, seconds=10)
        found = []
        for line in said.splitlines():
            job, _, name = line.partition(" ")
            if name.startswith(PREFIX):
                remove = functools.partial(_cancel, job)
                found.append(Leftover(name=f"Slurm job {job}", job=name.removeprefix(PREFIX), remove=remove))
        return found


def _cancel(job: str) -> None:
    code, _, reason = keeper.command(["scancel", "--quiet", job], seconds=30)
    if code != 0:
        raise OSError(f"scancel {job}: {reason}")


class _Wanted:
    """A host that is waited for."""

    def __init__(self, name: str, ready: Ready, failed: Failed) -> None:
        self.name = name
        self.ready = ready
        self.failed = failed


class _Allocation:
    """An allocation, from its submission on.

    Args:
        provider: Whose it is.
        size: How many nodes it has.

    Attributes:
        size: How many nodes it has.
        job: Its number in Slurm, when it has one.
        nodes: The nodes of hosts that are there, and the hosts.
        taken: Whether Slurm takes it, or has taken it.
        agents: The agents of hosts, by the host.
    """

    def __init__(self, provider: SlurmProvider, size: int) -> None:
        self._provider = provider
        self.size = size
        self.job: str | None = None
        self.nodes: dict[str, str] = {}
        self.taken = False
        self.agents: dict[str, _NodeHost] = {}
        self._wanted: list[_Wanted] = []
        self._hosts: set[str] = set()
        self._cancelled = False
        self._waits_again = False  # in the place in the queue that it had

    def submit(self, wanted: Sequence[_Wanted]) -> None:
        """Get into the queue, for hosts that are waited for."""
        self._wanted = list(wanted)
        self._hosts = {one.name for one in wanted}
        if self.job is not None:
            self.taken = False
            self._waits_again = True
            self._provider.queue.again(self.job, self._queued)
        else:
            self._submit()

    def _submit(self) -> None:
        provider = self._provider
        words = provider.options.words(self.size)
        avoided = provider.taken() | provider.silent
        if avoided and not {"exclude", "nodelist"} & set(provider.options.plain):
            words.append(f"--exclude={','.join(sorted(avoided))}")
        name = f"--job-name={PREFIX}{provider.spec.name}"
        files = ["--output=/dev/null", "--error=/dev/null", "--input=/dev/null", "--chdir=/"]
        provider.queue.submit(["sbatch", "--parsable", name, *files, *words], SCRIPT, self._submitted)

    def _submitted(self, event: Event) -> None:
        if event["event"] != "submitted" and self._provider.silent:
            self._provider.silent.clear()  # without them there are not enough, and Slurm believes that they are well
            self._submit()
        elif event["event"] != "submitted":
            self._fail(f"sbatch refused the allocation: {event['reason']}")
        elif self._cancelled:
            self._provider.queue.cancel(event["job"])
        else:
            self.job = event["job"]
            self._provider.queue.watch(event["job"], self._queued)

    def _queued(self, event: Event) -> None:
        if event["event"] == "pending":
            place = f", at place {event['position']} of its partition's queue" if event["position"] else ""
            self._provider.tell(f"Slurm job {self.job} is pending{place}: {explain(event['reason'])}.")
        elif event["event"] == "running":
            self._waits_again = False
            self._start(event["nodes"])
        elif self._waits_again:  # it did not come back
            self._waits_again = False
            self.job = None
            self._submit()
        else:
            self._fail(f"Slurm job {self.job} ended before it ran: {_why(event['state'], event['reason'])}")

    def _fail(self, reason: str) -> None:
        wanted, self._wanted = self._wanted, []
        self._provider.over(self)
        for one in wanted:
            one.failed(reason)

    def _start(self, nodes: Sequence[dict[str, str]]) -> None:
        if len(nodes) < self.size:  # scontrol did not answer, or words for sbatch asked for others
            self._fail(f"Slurm job {self.job} runs on {len(nodes)} nodes, but {self.size} were requested")
            return
        names = {node["name"] for node in nodes}
        if names & self._provider.taken():  # a part of a node, and the other part is ours as well
            self._provider.queue.cancel(str(self.job))
            self.job = None
            self._submit()
            return
        wanted, self._wanted = self._wanted, []
        for number, (one, node) in enumerate(zip(wanted, nodes, strict=False)):
            self.nodes[node["name"]] = one.name
            _Step(self._provider, self, one, node, first=number == 0)

    def notice(self, seconds: float) -> None:
        """Slurm will take its nodes, all at once, though their agents hear of it one after the other."""
        self.taken = True
        for host in list(self.agents.values()):
            host.on_notice(seconds)

    def release(self, host: str) -> None:
        """A host of it is not needed any more."""
        self._hosts.discard(host)
        self.agents.pop(host, None)
        self.nodes = {node: name for node, name in self.nodes.items() if name != host}
        if not self._hosts:
            self._provider.over(self)

    def cancel(self) -> None:
        """Leave the queue, or give the nodes back."""
        self._cancelled = True
        if self.job is not None:
            self._provider.queue.cancel(self.job)


class _Step:
    """The agent on one node: its srun, which carries the connection."""

    def __init__(
        self, provider: SlurmProvider, allocation: _Allocation, wanted: _Wanted, node: dict[str, str], *, first: bool
    ) -> None:
        self._loop = provider.loop
        self._provider = provider
        self._allocation = allocation
        self._lines: list[str] = []
        self._partial = b""
        self._over = False
        self._waiting: Callable[[], None] | None = None
        self._node = node["name"]
        options = provider.options
        address = node["address"]
        if not address:
            self._refuse(wanted, "its address is not known here. Call fit() on a machine that reaches the nodes")
            return
        try:
            caller = _own_address(address)
        except OSError as error:
            self._refuse(wanted, f"there is no route to {address}: {error.strerror}")
            return
        words = [
            "srun", f"--jobid={allocation.job}", f"--nodelist={self._node}", "--nodes=1", "--ntasks=1", "--overlap",
            "--mem=0", "--unbuffered", "--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0", "--chdir=/tmp",
            "--job-name=fleetfit-agent", f"--export={','.join(options.export)}", "--quiet",
            "sh", "-c", AGENT, "fleetfit", options.python, str(allocation.job) if first else "",
        ]  # fmt: skip
        try:
            read, write, errors = self._spawn(words)
        except OSError as error:
            self._refuse(wanted, f"srun could not be started: {error.strerror}")
            return
        self._loop.add_reader(errors, lambda: self._said(errors))
        self._host = allocation.agents[wanted.name] = _NodeHost(
            self._loop,
            wanted.name,
            read,
            write,
            why=self._explain,
            root=provider.root(wanted.name),
            address=address,
            caller_address=caller,
            interface="",
            ready=lambda host: self._ready(wanted, host),
            failed=lambda reason: self._refuse(wanted, reason),
            silence=options.silence,
            on_signal=lambda number: self._look(),
        )

    def _spawn(self, words: list[str]) -> tuple[int, int, int]:
        input_read, write = os.pipe()
        read, output_write = os.pipe()
        errors, errors_write = os.pipe()
        try:
            pid = processes.spawn(
                words,
                env=keeper.environment(),
                cwd="/",
                stdin=input_read,
                stdout=output_write,
                stderr=errors_write,
                # It ends when the agent does, and that does when we are gone; killed, it would tell the node later.
                death_signal=0,
                new_session=True,
            )
        except OSError:
            for fd in (write, read, errors):
                os.close(fd)
            raise
        finally:
            for fd in (input_read, output_write, errors_write):
                os.close(fd)
        self._provider.protected.add(pid)  # killed, it would have Slurm kill the agent, which tidies up

        self._loop.on_child(pid, lambda status: self._provider.protected.discard(pid))
        os.set_blocking(errors, False)
        return read, write, errors

    def _ready(self, wanted: _Wanted, host: RemoteHost) -> None:
        theirs, ours = host.facts.python_version.split(".")[:2], [str(number) for number in sys.version_info[:2]]
        if theirs != ours:
            host.close()
            self._refuse(
                wanted,
                f"{self._provider.options.python} is Python {'.'.join(theirs)}, but fit() runs on {'.'.join(ours)}; "
                "name another interpreter with backend_options={'python': …}",
            )
            return
        wanted.ready(host)
        if self._allocation.taken:  # it was announced while the agent started
            self._look()

    def _refuse(self, wanted: _Wanted, reason: str) -> None:
        self._allocation.release(wanted.name)
        wanted.failed(f"{self._node} (Slurm job {self._allocation.job}): {reason}")

    def _look(self) -> None:
        """Ask Slurm what a signal was for: it will take the node, or it ends what somebody has cancelled."""

        def answered(event: Event) -> None:
            if self._allocation.agents.get(self._host.name) is not self._host:
                return  # it was let go meanwhile; the allocation may have come back since
            # srun says "CANCELLED" of what is only announced, too, so without an answer it counts as an announcement.
            if event["state"] not in ("RUNNING", "") and self._end() in ("CANCELLED", "NODE_FAIL"):
                self._host.end("")
            else:
                left = event.get("left")
                self._allocation.notice(max(0.0, (left if left is not None else _NOTICE_S) - _MARGIN_S))

        self._provider.queue.look(str(self._allocation.job), answered)

    # --- why it has ended ---

    def _said(self, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(fd)
            os.close(fd)
            self._finish()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            if text and not any(noise in text for noise in _NOISE):
                self._lines = [*self._lines[1 - _LINES :], text]

    def _finish(self) -> None:
        """Nothing more comes of srun."""
        self._over = True
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting()

    def _end(self) -> str | None:
        """Return the state in which srun has said that the allocation ended."""
        for line in self._lines:
            if "CANCELLED AT" in line:
                return next((state for words, state in _SAID.items() if words in line), "CANCELLED")
        return None

    def _explain(self, reason: str, then: Callable[[str], None]) -> None:
        """Find out why the connection has ended: srun says so as it ends."""

        def told() -> None:
            timer.cancel()
            self._waiting = None
            end = self._end()
            missing = [line for line in self._lines if any(words in line for words in _UNUSABLE)]
            said = [line for line in self._lines if not any(words in line for words in _EMPTY)]
            if end is not None:
                self._allocation.taken |= end != "CANCELLED"
                then(_ENDS[end])
            elif missing:
                then(f"{missing[0]}. {_ENVIRONMENT}")
            else:
                self._provider.silent.add(self._node)
                then(f"{reason} ({said[-1]})" if said else reason)

        timer = self._loop.call_later(_WHY_S, told)
        if self._over:
            told()
        else:
            self._waiting = told


class _NodeHost(RemoteHost):
    """A host whose connection is srun's: why that ended is why the host is lost."""

    def __init__(self, *arguments: object, why: Callable[[str, Callable[[str], None]], None], **more: object) -> None:
        self._why = why
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def end(self, reason: str) -> None:
        """It is gone, although it does not know yet."""
        self.close()
        self._lost(reason)

    def _lost(self, reason: str) -> None:
        self._why(reason, super()._lost)


def explain(reason: str) -> str:
    """Say Slurm's reason for which a job is pending in words."""
    words = {
        "None": "it was just submitted",
        "Resources": "it waits for nodes to become free (Resources)",
        "Priority": "jobs of higher priority are ahead of it (Priority)",
        "PartitionDown": "its partition is down (PartitionDown)",
        "PartitionInactive": "its partition accepts no jobs (PartitionInactive)",
        "PartitionTimeLimit": "it asks for more time than its partition allows (PartitionTimeLimit)",
        "PartitionNodeLimit": "it asks for more nodes than its partition allows (PartitionNodeLimit)",
        "QOSMaxNodePerUserLimit": "you already have as many nodes as your QOS allows (QOSMaxNodePerUserLimit)",
        "JobHeldUser": "it is held; `scontrol release` releases it (JobHeldUser)",
        "JobHeldAdmin": "an administrator holds it (JobHeldAdmin)",
        "BeginTime": "its start time has not come yet (BeginTime)",
        "ReqNodeNotAvail": "nodes that it needs are not available (ReqNodeNotAvail)",
    }
    return words.get(reason, reason)


def _why(state: str, reason: str) -> str:
    text = _ENDS.get(state, state.lower() or "the reason is unknown")
    return f"{text} ({reason})" if reason and reason != "None" else text


def _apart(spec: TrainingJobSpec) -> bool:
    """Whether each host has an allocation of its own: Slurm ends a whole allocation with its first node."""
    return isinstance(spec.strategy, Elastic)


def _own_address(address: str) -> str:
    """Return the address that a node sees of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((address, 9))
        return str(sock.getsockname()[0])


def _partition_refusal(given: SlurmOptions, hosts: int, partitions: dict[str, dict[str, str]]) -> str | None:
    if given.partition is None:
        names = [name for name, fields in partitions.items() if fields.get("Default") == "YES"]
        if not names:
            known = ", ".join(sorted(partitions)) or "none"
            return f"this cluster has no default partition; name one with backend_options={{'partition': …}}: {known}."
    else:
        names = given.partition.split(",")
        for name in names:
            if name not in partitions:
                return unknown("partition of Slurm", name, sorted(partitions))
    reasons = []
    for name in names:
        reason = _unsuitable(given, hosts, name, partitions[name])
        if reason is None:
            return None
        reasons.append(reason)
    return " ".join(reasons)


def _unsuitable(given: SlurmOptions, hosts: int, name: str, fields: dict[str, str]) -> str | None:
    if fields.get("State", "UP") != "UP":
        return f"partition {name!r} accepts no jobs now (it is {fields['State']}); name another one, or wait."
    limits = [int(fields[field]) for field in ("TotalNodes", "MaxNodes") if fields.get(field, "").isdigit()]
    if limits and hosts > min(limits):
        return f"instance_count={hosts}, but partition {name!r} gives a job at most {min(limits)} nodes; ask for fewer."
    asked = minutes(given.time) if given.time is not None else None
    most = minutes(fields.get("MaxTime", "UNLIMITED"))
    if asked is not None and most is not None and asked > most:
        return f"time={given.time!r}, but partition {name!r} allows at most {fields['MaxTime']}; ask for less."
    return None
