"""Check the machines of an ssh fleet: their software, hardware and clocks, and the connections between them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from container.contract.names import shown
from container.system.asyncio_loop import AsyncioLoop, gather, within
from estimators.backends.hosts.child import ChildProcess
from estimators.backends.hosts.provider import HostError, Say
from estimators.backends.openssh.command import SshSettings
from estimators.backends.openssh.connection import Connections, NotStarted
from estimators.backends.ssh.machines import SshMachine

#: Seconds within which a machine must answer, and within which a machine must connect to another machine.
_ANSWER_S, _REACH_S = 20.0, 3.0
#: Smallest difference between a machine's clock and this machine's clock that is reported, in seconds. Logs and
#: certificates depend on clocks.
CLOCK_S = 2.0
#: Free disk space below which jobs are likely to fail, in bytes.
LITTLE_DISK = 5 << 30
#: The oldest Python that our code runs on.
OLDEST = (3, 10)

#: The program that runs on a machine. It reports facts about the machine, and listens at a port. Then it reads a list
#: of other machines from standard input, and tries to connect to each of them. It exits when standard input ends. It
#: runs with any Python 3, and needs only the standard library.
_PROBE = r"""
import glob, json, os, shutil, socket, sys, tempfile, time
address, seconds = sys.argv[1], float(sys.argv[2])
found = {}
for path in filter(None, map(shutil.which, ["python3.%d" % n for n in range(9, 20)] + ["python3"])):
    with os.popen('"%s" -I -c "import platform; print(platform.python_version())" 2>/dev/null' % path) as pipe:
        version = pipe.read().strip()
    if version:
        found.setdefault(version, path)
place = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
while not os.path.isdir(place):
    place = os.path.dirname(place)
server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
port, problem, own = 0, "", True
try:
    server.bind((address, 0)); server.listen(4096)
    port = server.getsockname()[1]
except OSError as error:
    problem = "the host cannot listen at %s: %s" % (address, error.strerror)
try:
    socket.gethostbyname(socket.gethostname())
except OSError:
    own = False
print(json.dumps(dict(facts=dict(
    hostname=socket.gethostname(), knows_itself=own, processor=os.uname().machine, pythons=found,
    cpus=len(os.sched_getaffinity(0)), gpus=len([p for p in glob.glob("/dev/nvidia[0-9]*") if p[11:].isdigit()]),
    disk=shutil.disk_usage(place).free, temporary=shutil.disk_usage(tempfile.gettempdir()).free,
    port=port, problem=problem, time=time.time(),
))), flush=True)
unreachable = {}
for name, other, port in json.loads(sys.stdin.readline() or "[]"):
    try:
        socket.create_connection((other, port), timeout=seconds).close()
    except OSError as error:
        unreachable[name] = error.strerror or str(error)
print(json.dumps(dict(unreachable=unreachable)), flush=True)
sys.stdin.read()
"""


@dataclasses.dataclass(kw_only=True)
class MachineReport:
    """The findings about one machine.

    Attributes:
        machine: The machine.
        problem: The reason why the machine could not be checked, or "" if it could be checked.
        address: The address at which the other machines reach the machine.
        facts: The facts that the probe on the machine has reported: ``hostname``, ``processor``, ``pythons``, ``cpus``,
            ``gpus``, ``disk`` and others.
        clock: The number of seconds by which the machine's clock is ahead of this machine's clock. None if the
            difference is not known.
        unreachable: The other machines to which the machine cannot connect: name -> reason.
        probe: The program that checks the machine, or None before the program was started.
    """

    machine: SshMachine
    problem: str = ""
    address: str = ""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    clock: float | None = None
    unreachable: dict[str, str] = dataclasses.field(default_factory=dict)
    probe: ChildProcess | None = None

    def warnings(self) -> list[str]:
        """Return the problems that jobs are likely to have with the machine. Each problem has its remedy."""
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
    settings: SshSettings, machines: Sequence[SshMachine], *, on_step: Say = lambda text: None
) -> list[MachineReport]:
    """Check all machines at the same time, and return the findings. This function must be called from the main thread.

    Args:
        settings: The ssh settings of the fleet.
        machines: The machines to check.
        on_step: A function that is called with a description of the current step.
    """
    loop = AsyncioLoop()
    connections = Connections(loop, settings)
    reports = [MachineReport(machine=machine) for machine in machines]
    try:
        loop.run(_check(connections, reports, on_step))
    finally:
        connections.close()
        loop.close()
    return reports


async def _check(connections: Connections, reports: Sequence[MachineReport], on_step: Say) -> None:
    try:
        on_step(f"checking {len(reports)} hosts")
        await gather(*(_attempt(report, _ANSWER_S, _look(connections, report)) for report in reports))
        there = [report for report in reports if not report.problem and report.facts["port"]]
        if len(there) > 1:
            on_step(f"testing the connections between {len(there)} hosts")
        seconds = _ANSWER_S + _REACH_S * len(there)
        await gather(*(_attempt(report, seconds, _reach(report, there)) for report in there))
    finally:
        for report in reports:
            if report.probe is not None:
                report.probe.close()


async def _attempt(report: MachineReport, seconds: float, step: Coroutine[Any, Any, None]) -> None:
    """Run a step of a check. If the step fails, store the reason as the machine's problem.

    Args:
        report: The findings about the machine.
        seconds: The time limit of the step, in seconds.
        step: The step.
    """
    try:
        await within(seconds, step)
    except asyncio.TimeoutError:
        report.problem = f"it did not answer within {seconds:g} s"
    except (EOFError, BrokenPipeError):
        report.problem = "the check on the host ended early. Check whether python3 works there"
    except NotStarted as error:
        report.problem = "it has no python3 in its PATH. Install Python" if error.code == 127 else str(error)
    except HostError as error:
        report.problem = str(error)


async def _look(connections: Connections, report: MachineReport) -> None:
    """Connect to a machine, and collect facts about it."""
    connection = await connections.open(report.machine.destination)
    report.address = report.machine.address or connection.address
    words = ["python3", "-I", "-c", _PROBE, report.address, f"{_REACH_S:g}"]
    report.probe = await connection.start(words)
    report.facts = await _reported(report.probe, "facts")
    report.clock = report.facts.pop("time") - time.time()


async def _reach(report: MachineReport, there: Sequence[MachineReport]) -> None:
    """Make a machine try to connect to the other machines. Store the machines that it cannot reach in the report."""
    assert report.probe is not None
    others = [(other.machine.name, other.address, other.facts["port"]) for other in there if other is not report]
    os.write(report.probe.input, json.dumps(others).encode() + b"\n")
    report.unreachable = await _reported(report.probe, "unreachable")


async def _reported(probe: ChildProcess, key: str) -> dict[str, Any]:
    """Return the next object that the probe reports under a key.

    Raises:
        EOFError: the probe has ended.
        HostError: the machine's Python has printed something else.
    """
    line = b""
    with contextlib.suppress(ValueError, RecursionError):  # the line is too long, no JSON or nested too deeply
        line = await probe.line()
        message = json.loads(line)
        if isinstance(message, dict) and isinstance(reported := message.get(key), dict):
            return reported
    text = shown(line.decode(errors="replace").rstrip("\n")) if line else "a very long line"
    raise HostError(f"python3 there printed {text} instead of the check's result. Make python3 print nothing itself")
