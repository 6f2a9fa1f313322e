"""What goes wrong with machines, and what has to come of a job then: it ends right, says why, and leaves nothing.

A machine fault is of one of the machines that a job is on: a host's, the dispatcher's or the caller's. A dispatcher
has the job's supervisor; without one the caller has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clusters
import ec2_machines
import fleet as fleets
from elastic_jobs import MEETING

from estimators import MPI, CollectiveAllReduce, ElasticHorovod, ParameterServer, TrainingJob
from estimators.client.attaching import find_job

#: After how many seconds a machine counts as lost that says nothing.
SILENCE_S = 3.0
#: All ranks wait until they may go on; an elastic one's are asked again and again.
WAITS = """
import sys, time
import aid
aid.mark(f"clock-{aid.RANK}", time.time())
aid.mark(f"ready-{aid.RANK}")
aid.wait_for("enough", 200)
print("done", flush=True)
"""
ELASTIC = MEETING.replace("while not", "aid.mark(f\"ready-{os.environ['HOROVOD_RANK']}\")\nwhile not", 1)

STRATEGIES: dict[str, Callable[[], Any]] = {
    "script": lambda: None,
    "mpi": lambda: MPI(processes_per_host=1),
    "collective": lambda: CollectiveAllReduce(),
    "parameter_server": lambda: ParameterServer(cluster_spec="sagemaker"),
    "elastic": lambda: ElasticHorovod(min_hosts=1, max_hosts=2, warm=False, cooldown=(0.1, 0.5)),
}
#: Fault -> on whom it is tried.
FAULTS = {
    "kill": ("host", "dispatcher", "caller"),
    "stop": ("host", "dispatcher", "caller"),
    "cut": ("host", "dispatcher"),
    "slow": ("host", "dispatcher"),
    "full": ("host", "dispatcher", "caller"),
    "clock": ("host", "dispatcher", "caller"),
}
PLACES = ("ssh", "slurm", "ec2")
#: By how much a clock is off, in seconds, and what sets it off.
OFF_S = 3600.0
CLOCK = Path(__file__).parent / "machines" / "clock.c"

#: A way to a machine on which everything takes 300 ms longer, and one piece in twenty a second, as those do that TCP
#: has to send again. The kernel's own (netem) is not on every machine.
SLOW_WAY = """
import os, random, selectors, socket, sys, time
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
ways = {0: there.fileno(), there.fileno(): 1}
queues = {fd: [] for fd in ways}
ready = selectors.DefaultSelector()
for fd in ways:
    ready.register(fd, selectors.EVENT_READ)
while True:
    due = min((queue[0][0] for queue in queues.values() if queue), default=None)
    for key, _ in ready.select(None if due is None else max(0.0, due - time.monotonic())):
        data = os.read(key.fd, 1 << 16)
        late = 1.3 if random.random() < 0.05 else 0.3
        queue = queues[key.fd]
        queue.append((max(time.monotonic() + late, queue[-1][0] if queue else 0.0), data))
        if not data:
            ready.unregister(key.fd)
    for fd, queue in queues.items():
        while queue and queue[0][0] <= time.monotonic():
            data = queue.pop(0)[1]
            if not data:
                sys.exit()
            while data:
                data = data[os.write(ways[fd], data):]
"""


def places_of(fault: str, who: str) -> tuple[str, ...]:
    """Where a fault can be tried: a dispatcher, and a way that is slow, are of machines that ssh reaches."""
    return ("ssh",) if who == "dispatcher" or fault == "slow" else PLACES


@dataclasses.dataclass(frozen=True)
class MachineFault:
    """What goes wrong with whom.

    Attributes:
        place: Where the hosts are: ``ssh``, ``slurm`` or ``ec2``.
        who: ``host``, ``dispatcher`` or ``caller``.
        kind: One of :data:`FAULTS`.
        strategy: One of :data:`STRATEGIES`.
    """

    place: str
    who: str
    kind: str
    strategy: str

    @classmethod
    def of(cls, seed: int) -> MachineFault:
        """Choose one."""
        choice = random.Random(seed)
        fault = choice.choice(list(FAULTS))
        who = choice.choice(FAULTS[fault])
        return cls(choice.choice(places_of(fault, who)), who, fault, choice.choice(list(STRATEGIES)))

    def __str__(self) -> str:
        return f"{self.place}-{self.who}-{self.kind}-{self.strategy}"


class Stage:
    """Where faults are played: machines, and a job on them.

    Args:
        fleet: The machines; the last is the dispatcher.
        make: Makes the estimators of a place; those of ssh name hosts.
        folder: For the files of one fault.
        ec2: The machines of EC2.
    """

    def __init__(
        self, fleet: fleets.Fleet, make: clusters.Make, folder: Path, ec2: ec2_machines.Machines | None = None
    ) -> None:
        self.fleet, self.make, self.folder, self.ec2 = fleet, make, folder, ec2
        self.dispatcher = fleet.machines[3]
        self._undo = contextlib.ExitStack()

    def play(self, fault: MachineFault) -> str:
        """Have a job meet the fault, and return how it ended. What must not be fails an assertion."""
        with contextlib.ExitStack() as disk, self._undo:
            if fault.kind == "full" and fault.who == "caller":
                disk.enter_context(_own_disk(Path(os.environ["FLEETFIT_HOME"])))
            job = self._start(fault)
            if fault.kind != "slow":  # it was from the beginning
                self._strike(job, fault)
            outcome = self._await_end(job, fault)
        self._await_nothing(fault)
        return outcome

    def _start(self, fault: MachineFault) -> TrainingJob:
        make = self.make
        options: dict[str, Any] = dict(make._options)
        given: dict[str, Any] = dict(options["backend_options"])
        keys = self.fleet.keys
        assert keys is not None
        config = keys.client()
        if fault.kind == "slow":
            config = self._slow(config, fault)
        python = self._other_clock() if fault.kind == "clock" else sys.executable
        given["silence"] = SILENCE_S
        if fault.who == "host":
            given["python"] = python
        if fault.place == "ssh":
            given |= {
                "hosts": [machine.address for machine in self.fleet.machines[:3]],
                "ssh_config": str(config if fault.who == "host" else keys.client()),
            }
        # The caller's own part is small where a dispatcher has the job, and everything where none has.
        if fault.place == "ssh" and fault.who != "host":
            there = {
                "python": python if fault.who == "dispatcher" else sys.executable,
                "ssh_config": str(config),
            }
            options |= {"dispatcher": self.dispatcher.address, "dispatcher_options": there}
        options["backend_options"] = given
        options["start_timeout"] = 60.0
        make.clear()
        environment = {"FLEETFIT_HOME": os.environ["FLEETFIT_HOME"]} if fault.place != "ssh" else {}
        make._environment = environment
        script = ELASTIC if fault.strategy == "elastic" else WAITS
        with _clock_off(self._clock()) if (fault.kind, fault.who) == ("clock", "caller") else contextlib.nullcontext():
            return make.start(
                textwrap.dedent(script),
                hosts=2,
                ready=2,
                options=options,
                distribution=STRATEGIES[fault.strategy](),
            )

    # --- faults ---

    def _slow(self, config: Path, fault: MachineFault) -> Path:
        way = self.fleet.folder / "slow_way.py"
        way.write_text(SLOW_WAY)
        slow = self.fleet.folder / "ssh" / "slow"
        slow.write_text(f"Host *\n  ProxyCommand {shlex.join([sys.executable, str(way)])} %h %p\n{config.read_text()}")
        return slow

    def _clock(self) -> Path:
        """Make what sets a clock off; Debian's libfaketime has every sleep of Python fail."""
        made = self.make.marks.parent / "clock.so"
        if not made.exists():
            part = made.with_suffix(f".{os.getpid()}")
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(part), str(CLOCK), "-ldl"], check=True)
            part.rename(made)
        return made

    def _other_clock(self) -> str:
        """Make a Python whose clock is off, on the first machine that starts it."""
        claim = self.make.marks.parent / f"off-{self.make.marks.name}"
        python = claim.with_suffix(".python")
        python.write_text(
            f"""#!/bin/sh
uname -n > {claim}.$$
ln {claim}.$$ {claim} 2>/dev/null
rm {claim}.$$
if [ "$(cat {claim})" = "$(uname -n)" ]; then
    export LD_PRELOAD={self._clock()}
fi
exec {shlex.quote(sys.executable)} "$@"
"""
        )
        python.chmod(0o755)
        return str(python)

    def _strike(self, job: TrainingJob, fault: MachineFault) -> None:
        machine = self._machine(fault)
        if fault.kind == "kill":
            for pid in self._pids(job, fault):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif fault.kind == "stop":
            pids = self._pids(job, fault)
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            self._undo.callback(lambda: [_signal(pid, signal.SIGCONT) for pid in pids])
        elif fault.kind == "cut":
            assert machine is not None
            machine.cut()
            self._undo.callback(machine.mend)
        elif fault.kind == "full":
            if machine is None:
                self._undo.enter_context(_full(job.record.home, None))
            else:
                self._undo.enter_context(_full(Path("/tmp"), int(machine.temporary.parts[2])))
        elif fault.kind == "clock":
            self._check_clocks(job, fault)

    @property
    def _machines(self) -> list[fleets.Machine | ec2_machines.Instance]:
        """All machines that a job may be on."""
        return [*self.fleet.machines, *(self.ec2.machines() if self.ec2 is not None else [])]

    def _machine(self, fault: MachineFault) -> fleets.Machine | ec2_machines.Instance | None:
        """The machine that it is about; None for this one."""
        if fault.who == "caller":
            return None
        if fault.who == "dispatcher":
            return self.dispatcher
        return next(one for one in self._machines if any(" train " in f"{line} " for line in one.processes()))

    def _pids(self, job: TrainingJob, fault: MachineFault) -> list[int]:
        machine = self._machine(fault)
        if machine is not None:
            return machine.pids()
        own = int(job.describe()["Fleetfit"]["supervisor_pid"])
        return [own]

    def _check_clocks(self, job: TrainingJob, fault: MachineFault) -> None:
        """See that a clock is off, and only that one."""
        if fault.who == "host":
            if fault.strategy != "elastic":
                clocks = sorted(float((self.make.marks / f"clock-{rank}").read_text()) for rank in range(2))
                assert clocks[1] - clocks[0] > OFF_S / 2, clocks
            return
        dispatched = self.dispatcher.pids() if fault.who == "dispatcher" else []
        found = [process for pid in [*dispatched, *self._pids(job, fault)] if (process := clusters.process(pid))]
        assert any(process.environ.get("LD_PRELOAD") == str(self._clock()) for process in found)

    # --- what has to come of it ---

    def _await_end(self, job: TrainingJob, fault: MachineFault) -> str:
        """Let the job end, and see that it ends as it has to."""
        keeps_going = fault.kind in ("slow", "full", "clock") or (
            fault.who == "caller" and (fault.place == "ssh" or fault.kind == "stop")
        )
        elastic_goes_on = fault.strategy == "elastic" and fault.who == "host"
        if fault.kind == "stop" and fault.who != "host":
            # Nobody sees the end of a supervisor that is stopped; that its hosts end by themselves is seen.
            if fault.place == "ssh" and fault.who == "dispatcher":
                clusters.until(lambda: not self._on_hosts())
            self._undo.close()
        if fault.kind == "cut" and fault.who == "dispatcher":
            clusters.until(lambda: not self._on_hosts())
            self._undo.close()
        if keeps_going or elastic_goes_on:
            if elastic_goes_on and fault.kind in ("kill", "stop", "cut"):
                clusters.until(lambda: _lost(job) or job.status.is_terminal)
            self.make.mark("enough")
        self._undo.close() if fault.kind == "full" and fault.who == "caller" else None
        job = self._again(job, fault)
        clusters.await_terminal(job)
        said = str(job.describe().get("FailureReason") or "")
        if fault.kind == "full":
            assert job.status == "Completed" or "space" in said or "lost" in said, said
        elif keeps_going or elastic_goes_on:
            assert job.status == "Completed", said
        else:
            assert job.status == "Failed"
            assert (said and "fault of fleetfit" not in said and "lost" in said) or "SIGKILL" in said, said
        return f"{job.status}: {said.splitlines()[0] if said else ''}"

    def _again(self, job: TrainingJob, fault: MachineFault) -> TrainingJob:
        """Find the job again where its caller was killed."""
        if fault.who == "caller" and fault.kind == "kill":
            clusters.until(lambda: not job.record.is_supervised())
        return find_job(job.name) if fault.who == "caller" else job

    def _on_hosts(self) -> list[str]:
        """What runs on the hosts, but for sshd's own, which holds a connection for as long as TCP does."""
        lines = [line for machine in self.fleet.machines[:3] for line in machine.processes()]
        return [line for line in lines if " sshd: " not in line]

    def _await_nothing(self, fault: MachineFault) -> None:
        clusters.until(lambda: not [line for one in self.fleet.machines for line in one.processes()])
        if self.ec2 is not None:
            clusters.until(lambda: not self.ec2.server.running())
        for machine in self.fleet.machines:
            if fault.kind == "full" or machine is self.dispatcher or fault.kind in ("kill", "cut", "stop"):
                machine.tidy()  # where everything was killed, nobody is left to remove files


def _lost(job: TrainingJob) -> bool:
    return any(event.kind in ("host_lost", "worker_lost") for event in job.record.events())


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def _full(place: Path, inside: int | None) -> Iterator[None]:
    """Leave no room on a file system of memory, as the process ``inside`` sees it; None: as this one does."""
    enter = ["nsenter", "-t", str(inside), "-m"] if inside is not None else []
    statistics = os.statvfs(f"/proc/{inside}/root{place}" if inside is not None else place)
    used = (statistics.f_blocks - statistics.f_bfree) * statistics.f_frsize
    resize = [*enter, "mount", "-o"]
    subprocess.run([*resize, f"remount,size={used}", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run([*resize, "remount,size=1g", str(place)], check=True)


@contextlib.contextmanager
def _clock_off(clock: Path) -> Iterator[None]:
    """Have the clock of what is started meanwhile be off."""
    os.environ["LD_PRELOAD"] = str(clock)
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]


@contextlib.contextmanager
def _own_disk(place: Path) -> Iterator[None]:
    """Have a folder be a file system of its own."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
