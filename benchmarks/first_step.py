"""From ``fit()`` to the end of the first training step: with one import a host, and with one a process."""

from __future__ import annotations

import argparse
import functools
import statistics
import time
import warnings
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

_SCRIPTS = harness.HERE / "scripts"

#: Strategy -> how many seconds it may take with two hosts of one process each.
_BARS = {"MPI": 3.0, "CollectiveAllReduce": 3.0, "ParameterServer": 4.5}


def timed(strategy: str, fork: str) -> Numbers:
    """One job of two hosts.

    Args:
        strategy: The class's name.
        fork: ``FLEETFIT_FORK``.

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
        environment={"FLEETFIT_FORK": fork},
        model_dir=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more processes than cores; a job that trains for one step
        start = time.time()
        job = estimator.fit(logs=False)
    steps = [float(line.text.split()[2]) for line in job.log_lines() if line.text.startswith("first step ")]
    assert steps and job.status == "Completed", strategy
    forked = any("imported" in event.data for event in job.record.events("importer"))
    assert forked == (fork != "0") and not any("refused" in e.data for e in job.record.events("importer"))
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    return {"first step": max(steps) - start}


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or 10
    samples: dict[str, Any] = {}
    rows: list[Row] = []
    with harness.own_home():
        quiet = Quiet(options.patience)
        for strategy, bar in _BARS.items():
            values = harness.alternate(
                rounds,
                {
                    "one import a host": functools.partial(timed, strategy, "1"),
                    "one a process": functools.partial(timed, strategy, "0"),
                },
                quiet,
            )
            samples[strategy] = values
            found = {way: [numbers["first step"] for numbers in values[way]] for way in values}
            rows.append(
                Row(
                    what=f"fit() to the end of the first step, {strategy}, 2 hosts",
                    estimate=median_with_interval(found["one import a host"]),
                    unit="s",
                    bar=Bar(limit=bar),
                    beside={"one import a process": statistics.median(found["one a process"])},
                )
            )
    harness.record("first-step", rows, samples, quiet, dry=options.dry)
