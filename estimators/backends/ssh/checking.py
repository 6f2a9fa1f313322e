"""Looks at the machines of a fleet: what they are, whether their clocks agree, and whether they reach each other."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from container.system.loop import Loop
from estimators.backends.ssh.command import SshSettings
from estimators.backends.ssh.connection import Connections, Finished, SshConnection
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
            said.append(f"Python 3.10 or newer is missing (installed: {there}); install one")
        if self.clock is not None and abs(self.clock) >= CLOCK_S:
            way = "ahead" if self.clock > 0 else "behind"
            said.append(f"its clock is {abs(self.clock):.1f} s {way} of this machine's clock; set it by NTP (chrony)")
        if self.facts["disk"] < LITTLE_DISK:
            said.append(f"{self.facts['disk'] / 1e9:.1f} GB are free for environments; free more space in ~/.cache")
        if self.facts["temporary"] < LITTLE_DISK:
            said.append(f"{self.facts['temporary'] / 1e9:.1f} GB are free for jobs; free more space in $TMPDIR")
        if not self.facts["knows_itself"]:
            said.append(f"it cannot resolve its own name, {self.facts['hostname']}; add the name to its /etc/hosts")
        if self.facts["problem"]:
            said.append(
                f"{self.facts['problem']}; set address=… in the host file to the address at which other hosts reach it"
            )
        for name, error in self.unreachable.items():
            said.append(f"it does not reach {name} ({error}); open the ports between the hosts")
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
    loop = Loop()
    connections = Connections(loop, settings)
    probes = [_Probe(loop, connections, machine, python) for machine in machines]
    try:
        on_step(f"checking {len(probes)} hosts")
        _until(loop, probes, lambda probe: bool(probe.report.facts))
        _until(loop, probes, lambda probe: probe.report.clock is not None, lambda probe: probe.ask_time())
        there = [probe for probe in probes if not probe.ended and probe.report.facts["port"]]
        if len(there) > 1:
            on_step(f"testing the connections between {len(there)} hosts")
        for probe in there:
            probe.reach([other.report for other in there if other is not probe])
        _until(loop, there, lambda probe: probe.over, seconds=_ANSWER_S + _REACH_S * len(there))
    finally:
        for probe in probes:
            probe.close()
        connections.close()
    return [probe.report for probe in probes]


def _until(
    loop: Loop,
    probes: Sequence[_Probe],
    done: Callable[[_Probe], bool],
    ask: Callable[[_Probe], None] = lambda probe: None,
    *,
    seconds: float = _ANSWER_S,
) -> None:
    for probe in probes:
        if not probe.ended:
            ask(probe)
    deadline = time.monotonic() + seconds
    while any(not probe.ended and not done(probe) for probe in probes):
        left = deadline - time.monotonic()
        if left <= 0:
            for probe in probes:
                if not probe.ended and not done(probe):
                    probe.fail(f"it did not answer within {seconds:g} s")
            return
        loop.run_once(left)


class _Probe:
    """One machine that is looked at."""

    def __init__(self, loop: Loop, connections: Connections, machine: Machine, python: str) -> None:
        self.report = Report(machine=machine)
        self.ended = False
        self.over = False
        self._loop = loop
        self._python = python
        self._fds: tuple[int, int] | None = None
        self._unread = b""
        self._asked = 0.0
        connections.open(machine.destination, self._connected, self.fail)

    def fail(self, text: str) -> None:
        """Nothing more can be said of it."""
        if not self.ended:
            self.report.problem = text
            self.close()

    def close(self) -> None:
        """End it."""
        self.ended = True
        if self._fds is not None:
            (read, write), self._fds = self._fds, None
            self._loop.remove_reader(read)
            os.close(read)
            os.close(write)

    def _connected(self, connection: SshConnection) -> None:
        self.report.address = self.report.machine.address or connection.address
        words = ["python3", "-I", "-c", _PROBE, self.report.address, self._python, f"{_REACH_S:g}"]

        def failed(finished: Finished) -> None:
            text = "it has no python3 in its PATH; install one" if finished.code == 127 else finished.last_line
            self.fail(text)

        connection.start(words, self._started, failed)

    def _started(self, read: int, write: int) -> None:
        self._fds = (read, write)
        self._loop.add_reader(read, self._readable)

    def _readable(self) -> None:
        assert self._fds is not None
        data = os.read(self._fds[0], 1 << 16)
        if not data:
            self.fail("the check on the host ended early; see whether python3 works there")
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "hostname" in said:
                self.report.facts = said
            elif "time" in said:
                self.report.clock = said["time"] - (self._asked + time.time()) / 2
            elif "error" in said:
                self.report.unreachable[said["peer"]] = said["error"]
            elif "over" in said:
                self.over = True

    def _tell(self, **values: object) -> None:
        if self._fds is not None:
            os.write(self._fds[1], json.dumps(values).encode() + b"\n")

    def ask_time(self) -> None:
        """Ask what time it is there."""
        self._asked = time.time()
        self._tell(op="time")

    def reach(self, others: Sequence[Report]) -> None:
        """Have it try to reach others."""
        peers = [(other.machine.name, other.address, other.facts["port"]) for other in others]
        self._tell(op="reach", peers=peers)
