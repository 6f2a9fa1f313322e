"""Looks at the machines of a fleet: what they are, whether their clocks agree, and whether they reach each other."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from container.system.asyncio_loop import AsyncioLoop, gather, within
from estimators.backends.hosts.provider import HostError
from estimators.backends.ssh.child import read
from estimators.backends.ssh.command import SshSettings
from estimators.backends.ssh.connection import Connections, NotStarted, RunningProgram
from estimators.backends.ssh.machines import Machine

#: How long a machine may take to answer, and one to reach another, in seconds.
_ANSWER_S, _REACH_S = 20.0, 3.0
#: From this difference on clocks are told, in seconds: logs and certificates go by them.
CLOCK_S = 2.0
#: With less free than this jobs are likely to fail, in bytes.
LITTLE_DISK = 5 << 30
#: The oldest Python that our code runs on.
OLDEST = (3, 10)

#: What runs on a machine: it says what that is, listens, and then tries to reach those that it is told of. It ends with
#: its input. The standard library of any Python 3 will do.
_PROBE = r"""
import glob, json, os, shutil, socket, sys, tempfile, threading, time
def say(**values):
    sys.stdout.write(json.dumps(values) + "\n"); sys.stdout.flush()
address, python, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
found = {}
for name in ([python] if python else []) + ["python3.%d" % n for n in range(9, 20)] + ["python3"]:
    path = shutil.which(os.path.expanduser(name))
    if path:
        with os.popen('"%s" -I -c "import platform; print(platform.python_version())" 2>/dev/null' % path) as pipe:
            version = pipe.read().strip()
        if version:
            found.setdefault(version, path)
cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
place = cache
while not os.path.isdir(place):
    place = os.path.dirname(place)
server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
problem = ""
try:
    server.bind((address, 0)); server.listen(64)
except OSError as error:
    problem = "the host cannot listen at %s: %s" % (address, error.strerror)
def accept():
    while True:
        server.accept()[0].close()
if not problem:
    threading.Thread(target=accept, daemon=True).start()
own = True
try:
    socket.gethostbyname(socket.gethostname())
except OSError:
    own = False
say(
    hostname=socket.gethostname(), knows_itself=own, processor=os.uname().machine, pythons=found,
    cpus=len(os.sched_getaffinity(0)), gpus=len([p for p in glob.glob("/dev/nvidia[0-9]*") if p[11:].isdigit()]),
    disk=shutil.disk_usage(place).free, temporary=shutil.disk_usage(tempfile.gettempdir()).free,
    port=0 if problem else server.getsockname()[1], problem=problem,
)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "time":
        say(time=time.time())
        continue
    for name, other, port in asked["peers"]:
        began = time.monotonic()
        try:
            socket.create_connection((other, port), timeout=seconds).close()
            say(peer=name, ms=(time.monotonic() - began) * 1000)
        except OSError as error:
            say(peer=name, error=error.strerror or str(error))
    say(over=True)
"""


@dataclasses.dataclass(kw_only=True)
class Report:
    """What was found of one machine.

    Attributes:
        machine: The machine.
        problem: Why nothing can be said of it; "" if something can.
        address: Where the others reach it.
        facts: What its probe said: ``hostname``, ``processor``, ``pythons``, ``cpus``, ``gpus``, ``disk``.
        clock: How far its clock is before ours, in seconds.
        unreachable: Machines that it does not reach, and why.
    """

    machine: Machine
    problem: str = ""
    address: str = ""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    clock: float | None = None
    unreachable: dict[str, str] = dataclasses.field(default_factory=dict)

    def warnings(self) -> list[str]:
        """Return what is likely to be in a job's way, each with its remedy."""
        said = [self.problem] if self.problem else []
        if not self.facts:
            return said
        if not any(_version(text) >= OLDEST for text in self.facts["pythons"]):
            there = ", ".join(self.facts["pythons"]) or "none"
            said.append(f"Python 3.10 or newer is missing (installed: {there}). Install a newer Python")
        if self.clock is not None and abs(self.clock) >= CLOCK_S:
            way = "ahead" if self.clock > 0 else "behind"
            said.append(
                f"its clock is {abs(self.clock):.1f} s {way} of this machine's clock. Set the clock by NTP (chrony)"
            )
        if self.facts["disk"] < LITTLE_DISK:
            said.append(f"{self.facts['disk'] / 1e9:.1f} GB are free for environments. Free more space in ~/.cache")
        if self.facts["temporary"] < LITTLE_DISK:
            said.append(f"{self.facts['temporary'] / 1e9:.1f} GB are free for jobs. Free more space in $TMPDIR")
        if not self.facts["knows_itself"]:
            said.append(f"it cannot resolve its own name, {self.facts['hostname']}. Add the name to its /etc/hosts")
        if self.facts["problem"]:
            said.append(
                f"{self.facts['problem']}. In the host file, set address=… to the address at which other hosts reach "
                "this host"
            )
        for name, error in self.unreachable.items():
            said.append(f"it does not reach {name} ({error}). Open the ports between the hosts")
        return said


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def check(
    settings: SshSettings,
    machines: Sequence[Machine],
    *,
    python: str = "",
    on_step: Callable[[str], None] = lambda text: None,
) -> list[Report]:
    """Look at machines, all at once; call it from the main thread.

    Args:
        settings: How they are reached.
        machines: Which.
        python: An interpreter to look for, beside those in PATH.
        on_step: Told what is being waited for.
    """
    loop = AsyncioLoop()
    connections = Connections(loop, settings)
    try:
        return loop.run(_check([_Probe(connections, machine, python) for machine in machines], on_step))
    finally:
        connections.close()
        loop.close()


async def _check(probes: Sequence[_Probe], on_step: Callable[[str], None]) -> list[Report]:
    try:
        on_step(f"checking {len(probes)} hosts")
        await gather(*(probe.within(_ANSWER_S, probe.begin()) for probe in probes))
        there = [probe for probe in probes if not probe.report.problem]
        await gather(*(probe.within(_ANSWER_S, probe.ask_time()) for probe in there))
        there = [probe for probe in there if not probe.report.problem and probe.report.facts["port"]]
        if len(there) > 1:
            on_step(f"testing the connections between {len(there)} hosts")
        others = {probe: [other.report for other in there if other is not probe] for probe in there}
        seconds = _ANSWER_S + _REACH_S * len(there)
        await gather(*(probe.within(seconds, probe.reach(others[probe])) for probe in there))
    finally:
        for probe in probes:
            probe.close()
    return [probe.report for probe in probes]


class _Probe:
    """One machine that is looked at."""

    def __init__(self, connections: Connections, machine: Machine, python: str) -> None:
        self.report = Report(machine=machine)
        self._connections = connections
        self._python = python
        self._program: RunningProgram | None = None
        self._unread = b""

    async def within(self, seconds: float, step: Coroutine[Any, Any, None]) -> None:
        """Take a step, after whose failure nothing more can be said of the machine."""
        try:
            await within(seconds, step)
        except asyncio.TimeoutError:
            self.report.problem = f"it did not answer within {seconds:g} s"
        except NotStarted as error:
            missing = error.finished.code == 127
            self.report.problem = "it has no python3 in its PATH. Install Python" if missing else str(error)
        except HostError as error:
            self.report.problem = str(error)

    async def begin(self) -> None:
        """Connect to it, and ask what it is."""
        connection = await self._connections.open(self.report.machine.destination)
        self.report.address = self.report.machine.address or connection.address
        words = ["python3", "-I", "-c", _PROBE, self.report.address, self._python, f"{_REACH_S:g}"]
        self._program = await connection.start(words)
        self.report.facts = await self._hear(self._program)

    async def ask_time(self) -> None:
        """Ask what time it is there."""
        asked = time.time()
        said = await self._hear(self._tell(op="time"))
        self.report.clock = said["time"] - (asked + time.time()) / 2

    async def reach(self, others: Sequence[Report]) -> None:
        """Have it try to reach others."""
        peers = [(other.machine.name, other.address, other.facts["port"]) for other in others]
        program = self._tell(op="reach", peers=peers)
        while "over" not in (said := await self._hear(program)):
            if "error" in said:
                self.report.unreachable[said["peer"]] = said["error"]

    def _tell(self, **values: object) -> RunningProgram:
        assert self._program is not None
        with contextlib.suppress(BrokenPipeError):  # its end is read
            os.write(self._program.write, json.dumps(values).encode() + b"\n")
        return self._program

    async def _hear(self, program: RunningProgram) -> dict[str, Any]:
        """Return the next thing that it says."""
        while b"\n" not in self._unread:
            data = await read(self._connections.loop, program.read)
            if not data:
                raise HostError("the check on the host ended early. Check whether python3 works there")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        """End it."""
        if self._program is not None:
            self._program.close()
