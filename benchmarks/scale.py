"""How the cost of fleetfit itself grows with the hosts: jobs on many hosts that a few processes play.

The hosts (:mod:`benchmarks.light.fleet`) speak the real protocol to the real supervisor: the agent's frames, pushes
of code and configuration, a toolkit's lines and signs of life, and the hosts' connections to algo-1's coordinator.
They have no processes and no files. Each has eight ranks that print.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

#: How many hosts there are.
SIZES = (2, 8, 32, 128, 512, 1024)
_RANKS = 8
#: Lines of each rank: what all hosts print is as much at each size.
_LINES = 524_288
#: How long all beat, in seconds.
_BEATING_S = 5.0
_PLAYERS = 2
_BARS = {
    "plan": Bar(limit=2.0),
    "ready": Bar(limit=10.0),
    "memory": Bar(limit=1.0),
    "share": Bar(limit=0.5),
    "lost": Bar(limit=1.0),
    "ended": Bar(limit=5.0),
    "lines": Bar(limit=100_000, at_least=True),
}
_WHAT = {
    "plan": ("plan() and its summary", "s"),
    "ready": ("from the first host to all of them", "s"),
    "memory": ("the supervisor's memory for each host more", "MB"),
    "share": ("the supervisor's share of a core while all beat", ""),
    "lost": ("from a host's loss to the record's failure", "s"),
    "ended": ("from the loss to the end of all", "s"),
    "lines": ("lines kept in a second", "1/s"),
}


@contextlib.contextmanager
def players(folder: Path, count: int = _PLAYERS) -> Iterator[list[str]]:
    """Start processes that play hosts; the paths of their sockets."""
    processes, sockets = [], []
    try:
        for number in range(count):
            path = str(folder / f"{number}.sock")
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.light.fleet", path],
                cwd=harness.HERE.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            processes.append(process)
            sockets.append(path)
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"listening\n"
        yield sockets
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


def fit(folder: Path, sockets: list[str], hosts: int, **wanted: Any) -> Any:
    """Start a job; returns its handle.

    Args:
        folder: For its script.
        sockets: Of who plays the hosts.
        hosts: How many.
        wanted: What its hosts shall do.
    """
    from estimators import MPI, RunOptions, TensorFlow

    script = folder / "train.py"
    script.write_text("print('nobody runs this')\n", encoding="utf-8")
    estimator = TensorFlow(
        entry_point=str(script),
        instance_type="light",
        instance_count=hosts,
        distribution=MPI(processes_per_host=_RANKS),
        environment={"LIGHT": json.dumps({"ranks": _RANKS, **wanted})},
        run_options=RunOptions(backend_options={"sockets": sockets}),
    )
    return estimator.fit(wait=False)


def _plan(hosts: int) -> float:
    from estimators import MPI, TensorFlow

    with tempfile.TemporaryDirectory() as name:
        Path(name, "train.py").touch()
        estimator = TensorFlow(
            entry_point=f"{name}/train.py", instance_count=hosts, distribution=MPI(processes_per_host=_RANKS)
        )
        begin = time.perf_counter()
        str(estimator.plan())
        return time.perf_counter() - begin


def _await(job: Any, what: str, count: int, limit: float = 300.0) -> list[Any]:
    """Wait until so many hosts have said something, or the job is over; the events."""
    until = time.monotonic() + limit
    while True:
        found = [event for event in job.record.events("phase") if event.data.get("name") == what]
        if len(found) >= count or job.record.read_status()["TrainingJobStatus"] not in ("InProgress", "Stopping"):
            assert len(found) >= count, job.record.read_status()
            return found
        assert time.monotonic() < until, f"{len(found)} of {count} hosts have said {what}"
        time.sleep(0.2)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize() / 1e6


def one(hosts: int) -> Numbers:
    """Measure a size: a job that prints, beats and completes, and one that loses a host."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with players(folder) as sockets:
            lines = max(1, _LINES // (hosts * _RANKS))
            job = fit(folder, sockets, hosts, lines=lines, seconds=2 * _BEATING_S)
            went = _await(job, "light_go", hosts)
            pid = job.record.read_status()["Fleetfit"]["supervisor_pid"]
            printed = _await(job, "light_printed", hosts)
            memory = _resident_mb(pid)
            before, begin = _cpu_s(pid), time.monotonic()
            time.sleep(_BEATING_S)
            share = (_cpu_s(pid) - before) / (time.monotonic() - begin)
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                job.wait(logs=False)
            harness.wait_for_exit(pid)
            counts: dict[int, int] = {}
            for line in job.log_lines():
                if line.rank is not None:
                    number = counts.get(line.rank, 0)
                    assert line.text == f"line {number}", (line, number)
                    counts[line.rank] = number + 1
            assert set(counts.values()) == {lines} and len(counts) == hosts * _RANKS, "lines were lost"
            hellos = [event.data["hello"] for event in went]
            start = max(event.time_ns for event in went) / 1e9
            last = max(_times(job))

            mark = folder / "lost"
            lost = fit(folder, sockets, hosts, lines=1, seconds=1.0, lose=f"algo-{hosts}", mark=str(mark))
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(Exception):
                lost.wait(logs=False)
            ended = time.time()
            at = float(mark.read_text(encoding="utf-8"))
            failures = [event.time_ns / 1e9 for event in lost.record.events("failure")]
            harness.wait_for_exit(lost.record.read_status()["Fleetfit"]["supervisor_pid"])
    return {
        "plan": _plan(hosts),
        "ready": start - min(hellos),
        "resident": memory,
        "share": share,
        "lines": hosts * _RANKS * lines / max(1e-3, last - min(event.time_ns for event in went) / 1e9),
        "printed": max(event.time_ns for event in printed) / 1e9 - start,
        "lost": min(failures) - at,
        "ended": ended - at,
    }


def _times(job: Any) -> Iterator[float]:
    """When each line was kept."""
    for file in (job.record.path / "hosts").glob("algo-*/logs/attempt-0/*.times"):
        data = file.read_bytes()
        yield int.from_bytes(data[-16:-8], "little") / 1e9


def growth(sizes: list[int], values: list[float]) -> float:
    """Return the exponent of a power of the hosts that fits best: 1 is linear, 0 the same at any size."""
    if len(sizes) < 2 or min(values) <= 0:
        return 0.0
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    sys.path.insert(0, str(harness.HERE / "light" / "plugin"))
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    sizes = list(SIZES)
    quiet = Quiet(options.patience)
    with harness.own_home():
        ways = {f"{size} hosts": (lambda size=size: one(size)) for size in sizes}
        values = harness.alternate(options.alternations or 1, ways, quiet, warm_up=0)
    rows = []
    for key, (what, unit) in _WHAT.items():
        medians = []
        for size in sizes:
            numbers = values[f"{size} hosts"]
            if key == "memory":
                base = values[f"{sizes[0]} hosts"]
                if size == sizes[0]:
                    continue
                found = [
                    (one["resident"] - two["resident"]) / (size - sizes[0])
                    for one, two in zip(numbers, base, strict=True)
                ]
            else:
                found = [each[key] for each in numbers]
            estimate = median_with_interval(found)
            medians.append(estimate.value)
            last = size == sizes[-1]
            beside = {"hosts": size}
            if last and key not in ("memory", "lines"):
                beside["exponent"] = growth(sizes[-3:], medians[-3:])
            rows.append(Row(what=f"{what}, {size} hosts", estimate=estimate, unit=unit, bar=_BARS[key], beside=beside))
    harness.record("scale", rows, {name: list(each) for name, each in values.items()}, quiet, dry=options.dry)
