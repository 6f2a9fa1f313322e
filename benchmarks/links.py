"""All-reduce over links that are made slower: 2, 3 and 4 network namespaces of this machine, joined by a bridge.

The bridge has a namespace of its own, so this machine's interfaces, routes and firewall are neither used nor changed.
What a host sends is shaped at its end of the link, what it receives at the bridge's end, by a token bucket (tbf).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import harness, steps
from benchmarks.allreduce import bus_bandwidth
from benchmarks.harness import Numbers, Quiet, Row, median_with_interval
from estimators.backends.docker.links import ShapedLink, system_path

HOSTS = (2, 3, 4)
LINKS: Mapping[str, ShapedLink | None] = {
    "100 Mbit/s": ShapedLink(rate=100_000_000),
    "1 Gbit/s": ShapedLink(rate=1_000_000_000),
    "unshaped": None,
}
#: Bytes that are reduced: the gradients of a small and of a big model.
SIZES: Mapping[str, int] = {"small, 1 MB": 1 << 20, "big, 16 MB": 1 << 24}
_ROUNDS = 2
#: For the reductions of one size; and for the bytes that show what a link carries.
_SECONDS = 0.5
#: At the slowest link a reduction takes seconds.
_WARM_UP, _LEAST = 1, 2

_PREFIX = "bench-links"
_NAME = re.compile(rf"{_PREFIX}-(?P<pid>\d+)-(?P<start>\d+)-\d+-(?:switch|host\d+)")
_INTERFACE = "eth0"
_BRIDGE = "bridge"
#: For benchmarks of networks (RFC 2544); it is seen only in the namespaces.
_NETWORK = "198.18.0."
#: Namespaces have all their ports to themselves.
_PORT = 7000
_TIMEOUT = 10.0
_SCRIPTS = harness.HERE / "scripts"

_numbers = itertools.count(1)


class Unavailable(RuntimeError):
    """Namespaces or shaped links cannot be had here; the message says why."""


# --- what is to be run: pure ---

Argv = list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Hosts on one bridge, as commands.

    Attributes:
        name: What the names of its namespaces begin with.
        hosts: How many hosts.
    """

    name: str
    hosts: int

    @property
    def switch(self) -> str:
        """The bridge's namespace."""
        return f"{self.name}-switch"

    def host(self, index: int) -> str:
        """A host's namespace."""
        return f"{self.name}-host{index + 1}"

    def address(self, index: int) -> str:
        """A host's address."""
        return f"{_NETWORK}{index + 1}"

    def names(self) -> list[str]:
        """All namespaces."""
        return [self.switch, *(self.host(index) for index in range(self.hosts))]

    def making(self) -> list[Argv]:
        """The commands that make the namespaces and join them. Both ends of each link are made where they belong."""
        commands = [
            ["ip", "netns", "add", self.switch],
            ["ip", "-n", self.switch, "link", "add", "name", _BRIDGE, "type", "bridge"],
            ["ip", "-n", self.switch, "link", "set", _BRIDGE, "up"],
        ]
        for index in range(self.hosts):
            host, port = self.host(index), self._port(index)
            commands += [
                ["ip", "netns", "add", host],
                ["ip", "-n", self.switch, "link", "add", "name", port, "type", "veth",
                 "peer", "name", _INTERFACE, "netns", host],
                ["ip", "-n", self.switch, "link", "set", port, "master", _BRIDGE, "up"],
                ["ip", "-n", host, "address", "add", f"{self.address(index)}/24", "dev", _INTERFACE],
                ["ip", "-n", host, "link", "set", "lo", "up"],
                ["ip", "-n", host, "link", "set", _INTERFACE, "up"],
            ]  # fmt: skip
        return commands

    def shaping(self, link: ShapedLink | None) -> list[Argv]:
        """The commands that shape both directions of each new host's link; none for links as they are."""
        if link is None:
            return []
        ends = [
            end
            for index in range(self.hosts)
            for end in ((self.host(index), _INTERFACE), (self.switch, self._port(index)))
        ]
        return [
            ["tc", "-n", where, "qdisc", "replace", "dev", interface, "root", *link.arguments()]
            for where, interface in ends
        ]

    def inside(self, index: int, command: Sequence[str]) -> Argv:
        """A command on a host. It keeps the process's number: to kill it is to kill the command."""
        return ["ip", "netns", "exec", self.host(index), *command]

    @staticmethod
    def _port(index: int) -> str:
        return f"port{index + 1}"


def plan(hosts: int) -> Plan:
    """A plan whose names no other run has, nor this one."""
    pid = os.getpid()
    return Plan(name=f"{_PREFIX}-{pid}-{_start_of(pid)}-{next(_numbers)}", hosts=hosts)


def leftovers(names: Iterable[str], start_of: Callable[[int], int | None]) -> list[str]:
    """The namespaces of runs that are no more. Pure.

    Args:
        names: Namespaces, of whomever.
        start_of: Process -> when it started; None if there is none. A number may have been given to another process.
    """
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None and start_of(int(match["pid"])) != int(match["start"]):
            found.append(name)
    return found


def bound(size: int, rate: float, hosts: int) -> float:
    """Seconds that a ring needs at least: 2(N−1)/N · S/B, ``rate`` in bytes per second. Pure."""
    return 2.0 * (hosts - 1) / hosts * size / rate


# --- doing it ---


def refusal() -> str | None:
    """Why it cannot be tried here; None when it can."""
    missing = [name for name in ("ip", "tc") if shutil.which(name, path=system_path()) is None]
    if missing:
        return f"{' and '.join(missing)} not found; Debian's package iproute2 has them"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    return None


@contextlib.contextmanager
def made(planned: Plan, link: ShapedLink | None = None) -> Iterator[Plan]:
    """Make the namespaces, and remove them at the end, however that comes; those of killed runs are removed first.

    Raises:
        Unavailable: they cannot be made or shaped here.
    """
    why = refusal()
    if why is not None:
        raise Unavailable(why)
    with harness.terminable():
        _remove(leftovers(_existing(), _start_of))
        try:
            for command in [*planned.making(), *planned.shaping(link)]:
                _run(command)
            yield planned
        finally:
            with _undisturbed():
                _remove(set(planned.names()) & set(_existing()))


def shape(planned: Plan, link: ShapedLink) -> None:
    """Shape the links of hosts that are there."""
    for command in planned.shaping(link):
        _run(command)


def transfer(planned: Plan, seconds: float) -> float:
    """Bytes per second that TCP carries from the second host to the first.

    Raises:
        RuntimeError: it failed; with what was said.
    """
    script = [sys.executable, "-I", str(_SCRIPTS / "link_speed.py")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    variables = {**os.environ, "PATH": system_path()}
    with contextlib.ExitStack() as stack:
        started = []
        for index in (0, 1):
            command = planned.inside(index, [*script, planned.address(0), str(_PORT), str(seconds), str(index)])
            process = subprocess.Popen(command, env=variables, **pipes)  # type: ignore[call-overload]
            stack.callback(_end, process)
            started.append(process)
            if index == 0:
                process.stdout.readline()  # it listens, or has failed
        said = [process.communicate(timeout=_TIMEOUT + 20 * seconds) for process in started]
    for process, (_, error) in zip(started, said, strict=True):
        if process.returncode:
            raise RuntimeError(f"bytes between two namespaces: ended with {process.returncode}:\n{error[-2000:]}")
    return float(said[0][0])


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _run(command: Argv) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": system_path(), "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _existing() -> list[str]:
    """The names of this machine's namespaces."""
    return [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line.strip()]


def _remove(names: Iterable[str]) -> None:
    """Kill what runs in these namespaces, and delete them: their links go with them.

    Raises:
        Unavailable: one could not be removed; the others are.
    """
    failed = []
    for name in names:
        try:
            _kill_all(name)
            _run(["ip", "netns", "delete", name])
        except Unavailable as error:
            if name in _existing():  # else another run was faster
                failed.append(error)
    if failed:
        raise failed[0]


def _kill_all(name: str) -> None:
    """As long as a process is in it, a namespace outlives its name."""
    until = time.monotonic() + _TIMEOUT
    while pids := _run(["ip", "netns", "pids", name]).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > until:
            raise Unavailable(f"processes in {name} do not end: {' '.join(pids)}")
        time.sleep(0.01)


def _start_of(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold spaces and parentheses: the fields start after the last one.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(fields[18])


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """SIGTERM and SIGINT wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- measuring ---


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    seconds = options.seconds or _SECONDS
    with harness.terminable(), harness.own_home(), tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ways = {
            way: functools.partial(_measure, hosts, link, seconds, Path(folder, "result.json"))
            for way, (hosts, link) in ways_of().items()
        }
        try:
            with made(plan(2), LINKS["100 Mbit/s"]):
                pass  # before anything waits for a quiet machine
            quiet = Quiet(options.patience)
            values = harness.alternate(options.alternations or _ROUNDS, ways, quiet, warm_up=0, show=_shown)
        except Unavailable as error:
            raise SystemExit(f"links between network namespaces cannot be had here: {error}") from error
    harness.record("links", rows_of(values), values, quiet, dry=options.dry, table=table(values))


def _shown(numbers: Numbers) -> str:
    """What one round of a way gave."""
    times = [f"{name} {1e3 * numbers[str(size)]:,.1f} ms" for name, size in SIZES.items()]
    return "; ".join([*times, f"TCP {numbers['carried'] / 1e6:,.1f} MB/s"])


def ways_of() -> dict[str, tuple[int, ShapedLink | None]]:
    """Name of each way -> hosts and their links. Pure."""
    return {f"{hosts} hosts, {name}": (hosts, link) for hosts in HOSTS for name, link in LINKS.items()}


def _measure(hosts: int, link: ShapedLink | None, seconds: float, result: Path) -> Numbers:
    """What the links carry, and the seconds of a reduction of each size, in namespaces of their own."""
    with made(plan(hosts), link) as planned:
        carried = transfer(planned, seconds)
        steps.run_processes(commands(planned, seconds, result))
    found = json.loads(result.read_text())
    result.unlink()
    return {**found, "carried": carried}


def commands(planned: Plan, seconds: float, result: Path) -> list[tuple[str, Argv, dict[str, str]]]:
    """Name, command and variables of the worker on each host. Pure."""
    sizes = ",".join(map(str, SIZES.values()))
    script = [
        sys.executable, "allreduce.py", "--sizes", sizes, "--seconds", str(seconds), "--result", str(result),
        "--warm-up", str(_WARM_UP), "--least", str(_LEAST),
    ]  # fmt: skip
    cluster = {"worker": [f"{planned.address(index)}:{_PORT}" for index in range(planned.hosts)]}
    return [
        (
            f"worker {index}",
            planned.inside(index, script),
            {**steps.tf_config(cluster, "worker", index), "PATH": system_path()},
        )
        for index in range(planned.hosts)
    ]


def _rate(link: ShapedLink | None, rounds: Sequence[Numbers]) -> float:
    """Bytes per second that the bound goes by: what the link is shaped to, else what TCP got through it."""
    return link.rate / 8 if link is not None else statistics.median(numbers["carried"] for numbers in rounds)


def rows_of(values: Mapping[str, Sequence[Numbers]]) -> list[Row]:
    """A row for each count of hosts, link and size: the time of a reduction, beside the bound and the bus bandwidth."""
    rows = []
    for way, (hosts, link) in ways_of().items():
        rounds = values[way]
        for name, size in SIZES.items():
            taken = [numbers[str(size)] for numbers in rounds]
            rows.append(
                Row(
                    what=f"{way}; {name}",
                    estimate=median_with_interval([1e3 * seconds for seconds in taken]),
                    unit="ms",
                    beside={
                        "bound, ms": 1e3 * bound(size, _rate(link, rounds), hosts),
                        "bus, MB/s": bus_bandwidth(size, statistics.median(taken), hosts) / 1e6,
                    },
                )
            )
    return rows


def table(values: Mapping[str, Sequence[Numbers]]) -> str:
    """A row for each count of hosts and link; for each size the time, the bus bandwidth and its share of the link."""
    head = ["hosts, link", "TCP between two, MB/s"]
    for name in SIZES:
        head += [f"{name}: time of a step, ms", "bus bandwidth, MB/s", "bound ÷ time"]
    lines = [head, ["---"] * len(head)]
    found = {row.what: row for row in rows_of(values)}
    for way in ways_of():
        carried = statistics.median(numbers["carried"] for numbers in values[way])
        cells = [way, f"{carried / 1e6:,.1f}"]
        for name in SIZES:
            row = found[f"{way}; {name}"]
            estimate = row.estimate
            cells += [
                f"{estimate.value:,.1f} ({estimate.low:,.1f} to {estimate.high:,.1f})",
                f"{row.beside['bus, MB/s']:,.1f}",
                f"{row.beside['bound, ms'] / estimate.value:.2f}",
            ]
        lines.append(cells)
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return (
        f"{text}\n\nA step reduces the bytes once over all hosts, a ring of one process each. The bound is "
        "2(N−1)/N · S/B; B is what the link is shaped to, headers of packets included, or, unshaped, what TCP got "
        "through it when nothing else ran. Hosts share this machine's cores, which is what limits unshaped links."
    )
