"""To the first step: of a job, cold and with its imports kept, of a gang's next start, of a host that joins."""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

_SCRIPTS = harness.HERE / "scripts"
_KEPT, _COLD, _EACH = "kept", "one import a machine", "one a process"
_DIGITS = "digits"

#: Strategy -> how many seconds it may take with two hosts of one process each: where the imports are kept, and cold.
_BARS = {"MPI": (0.9, 3.0), "CollectiveAllReduce": (0.9, 3.0), "ParameterServer": (1.8, 4.5)}
#: Strategy -> what part of the cold time it may take where the imports are kept, whatever the machine's speed.
_KEPT_PART = {"MPI": 0.30, "CollectiveAllReduce": 0.30, "ParameterServer": 0.35}
#: How many times the cold time of MPI that of parameter servers may be.
_SERVERS_PART = 1.4
#: The digits classifier of ``entrypoints``, where the imports are kept.
_DIGITS_BAR = 2.0
#: Of a job that runs: what is timed, how it is told, how many seconds it may take.
_RUNNING = {
    "restart": ("SIGKILL of a rank of a gang to the first step of its next start, 2 hosts", 1.2),
    "join": ("an elastic host joins: request to the first step with it", 1.0),
    "kill": ("SIGKILL of an elastic worker to the next step of the other", 0.15),
    "leave": ("an elastic host leaves: request to the first step without it", 0.25),
}


def timed(strategy: str, way: str) -> Numbers:
    """One job of two hosts.

    Args:
        strategy: The class's name.
        way: How its scripts get what they import.

    Returns:
        ``first step``: seconds from calling ``fit()`` until the last rank's first step has ended.
    """
    import estimators

    estimator = estimators.TensorFlow(
        entry_point="first_step.py",
        source_dir=str(_SCRIPTS),
        instance_count=2,
        instance_type="local_process",
        distribution=getattr(estimators, strategy)(),
        environment={"FLEETFIT_FORK": str(int(way != _EACH))},
        keep_alive_period_in_seconds=600 if way == _KEPT else None,
        model_dir=False,
    )
    start, job = _fit(estimator, None)
    steps = [float(line.text.split()[2]) for line in job.log_lines() if line.text.startswith("first step ")]
    assert steps, strategy
    forked = any("imported" in event.data for event in job.record.events("importer"))
    assert forked == (way != _EACH) and not any("refused" in e.data for e in job.record.events("importer"))
    return {"first step": max(steps) - start}


def timed_digits(data: Path, way: str) -> Numbers:
    """One job of the digits classifier under Horovod, of two hosts; see :func:`timed`."""
    import estimators

    estimator = estimators.TensorFlow(
        entry_point="train.py",
        source_dir=str(harness.HERE.parent / "entrypoints"),
        instance_count=2,
        instance_type="local_process",
        distribution=estimators.MPI(),
        environment={"FLEETFIT_FORK": str(int(way != _EACH))},
        hyperparameters={"epochs": 1},
        keep_alive_period_in_seconds=600 if way == _KEPT else None,
    )
    start, job = _fit(estimator, {"train": str(data / "train"), "validation": str(data / "validation")})
    steps = [event.time_ns / 1e9 for event in job.record.events("phase") if event.data["name"] == "first_step"]
    return {"first step": max(steps) - start}


def _fit(estimator: Any, inputs: dict[str, str] | None) -> tuple[float, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more processes than cores; a job that trains for one step
        start = time.time()
        job = estimator.fit(inputs, logs=False)
    assert job.status == "Completed"
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    return start, job


def changed(fork: str) -> Numbers:
    """What becomes of jobs that run; see :data:`_RUNNING`."""
    from benchmarks.elastic import ElasticFit, GangFit

    with tempfile.TemporaryDirectory(prefix="gang-") as folder:
        numbers = dict(GangFit(Path(folder), hosts=2, fork=fork).measure())
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        numbers |= ElasticFit(Path(folder), fork=fork).measure()
    return {name: numbers[name] for name in _RUNNING}


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or 10
    from estimators.backends.hosts import kept
    from estimators.records.record import jobs_folder

    samples: dict[str, Any] = {}
    rows: list[Row] = []

    def compare(
        name: str,
        ways: dict[str, Callable[[], Numbers]],
        told: dict[str, tuple[str, dict[str, float]]],
        warm_up: int,
    ) -> None:
        values = samples[name] = harness.alternate(rounds, ways, quiet, warm_up=warm_up)
        for one in kept.find(jobs_folder().parent):
            kept.leftover(one).remove()
        for number, (what, bars) in told.items():
            found = {way: median_with_interval([numbers[number] for numbers in values[way]]) for way in ways}
            for way, bar in bars.items():
                others = {other: found[other].value for other in ways if other != way}
                text = f"{what}, {way}"
                rows.append(Row(what=text, estimate=found[way], unit="s", bar=Bar(limit=bar), beside=others))

    with harness.own_home(), tempfile.TemporaryDirectory(prefix="digits-") as folder:
        quiet = Quiet(options.patience)
        data = Path(folder) / "digits"
        script = harness.HERE.parent / "entrypoints" / "prepare_digits.py"
        subprocess.run([sys.executable, script, "--output", data], check=True, stdout=subprocess.DEVNULL)
        for strategy, (warm, cold) in _BARS.items():
            compare(
                strategy,
                {way: functools.partial(timed, strategy, way) for way in (_KEPT, _COLD, _EACH)},
                {
                    "first step": (
                        f"fit() to the end of the first step, {strategy}, 2 hosts",
                        {_KEPT: warm, _COLD: cold},
                    )
                },
                1,
            )
        compare(
            _DIGITS,
            {way: functools.partial(timed_digits, data, way) for way in (_KEPT, _COLD, _EACH)},
            {"first step": ("the digits classifier's first step, MPI, 2 hosts", {_KEPT: _DIGITS_BAR})},
            1,
        )
        compare(
            "running",
            {_COLD: functools.partial(changed, "1"), _EACH: functools.partial(changed, "0")},
            {name: (what, {_COLD: bar}) for name, (what, bar) in _RUNNING.items()},
            0,
        )

    def ratio(what: str, limit: float, one: tuple[str, str], other: tuple[str, str]) -> None:
        times = [[numbers["first step"] for numbers in samples[name][way]] for name, way in (one, other)]
        parts = [mine / theirs for mine, theirs in zip(*times, strict=True)]
        rows.append(Row(what=what, estimate=median_with_interval(parts), unit="", bar=Bar(limit=limit)))

    for strategy, part in _KEPT_PART.items():
        ratio(f"first step, {strategy}, 2 hosts: {_KEPT} ÷ {_COLD}", part, (strategy, _KEPT), (strategy, _COLD))
    servers = "first step, one import a machine: ParameterServer ÷ MPI"
    ratio(servers, _SERVERS_PART, ("ParameterServer", _COLD), ("MPI", _COLD))
    harness.record("first-step", rows, samples, quiet, dry=options.dry)
