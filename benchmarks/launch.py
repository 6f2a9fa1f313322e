"""What ``fit()`` costs: an empty script under ``fit()`` and under a bare ``mpirun``, the import, the end of a job."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

_SCRIPTS = harness.HERE / "scripts"
_MPIRUN = Path(sys.executable).parent / "mpirun"

#: Hosts, processes per host -> how many seconds ``fit()`` may take longer than mpirun.
_SHAPES = {(2, 1): 0.3, (1, 2): 0.3, (2, 4): 0.6, (1, 8): 0.6}
_IMPORT_BAR = 0.3
_END_BAR = 0.5


def timed_fit(hosts: int, processes: int) -> Numbers:
    """One job of the empty script, with everything that users see, its logs and table printed.

    Returns:
        ``fit``: seconds from calling ``fit()`` until it returned. ``end``: of these, those after the last rank's exit.
    """
    from estimators import MPI, PreflightWarning, TensorFlow

    estimator = TensorFlow(
        entry_point="empty.py",
        source_dir=str(_SCRIPTS),
        instance_count=hosts,
        instance_type="local_process",
        distribution=MPI(processes_per_host=processes),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)  # more processes than cores
        start = time.time()
        job = estimator.fit()
        end = time.time()
    exits = [event.time_ns / 1e9 for event in job.record.events("process_ended") if event.rank is not None]
    assert len(exits) == hosts * processes, exits
    # It completes the provenance after fit() has returned; that must not slow whatever is measured next.
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    assert job.status == "Completed"  # asking also reaps the supervisor
    return {"fit": end - start, "end": end - max(exits)}


def _bare(processes: int) -> Numbers:
    """Seconds of a bare ``mpirun`` of the same script, with only what it needs to run here."""
    argv = [str(_MPIRUN), "-np", str(processes)]
    if os.geteuid() == 0:
        argv.append("--allow-run-as-root")
    if processes > len(os.sched_getaffinity(0)):
        argv.append("--oversubscribe")
    start = time.time()
    subprocess.run([*argv, sys.executable, str(_SCRIPTS / "empty.py")], check=True, stdin=subprocess.DEVNULL)
    return {"mpirun": time.time() - start}


def _first_fit(hosts: int, processes: int) -> Numbers:
    output = _python("-m", "benchmarks.first_fit", str(hosts), str(processes))
    return dict(json.loads(output.splitlines()[-1]))


def _python(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=harness.HERE.parent
    ).stdout


def _timed_import(code: str) -> Numbers:
    """Seconds of an import in a fresh interpreter, without the interpreter's own start."""
    program = f"import time; start = time.perf_counter(); {code}; print(time.perf_counter() - start)"
    return {"import": float(_python("-c", program))}


def _later_fit(hosts: int, processes: int) -> Numbers:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return timed_fit(hosts, processes)


def _shape_rows(hosts: int, processes: int, rounds: int, quiet: Quiet, samples: dict[str, Any]) -> list[Row]:
    values = harness.alternate(
        rounds,
        {
            "mpirun": functools.partial(_bare, hosts * processes),
            "first fit()": functools.partial(_first_fit, hosts, processes),
            "later fit()": functools.partial(_later_fit, hosts, processes),
        },
        quiet,
    )
    name = f"{hosts} host{'s' if hosts > 1 else ''} × {processes}"
    samples[name] = values
    bare = [numbers["mpirun"] for numbers in values["mpirun"]]
    rows = []
    for way in ("first fit()", "later fit()"):
        fits = [numbers["fit"] for numbers in values[way]]
        rows.append(
            Row(
                what=f"{way} of a process − bare mpirun, {name} processes",
                estimate=median_with_interval([fit - mpirun for fit, mpirun in zip(fits, bare, strict=True)]),
                unit="s",
                bar=Bar(limit=_SHAPES[hosts, processes]),
                beside={"mpirun": statistics.median(bare), "fit()": statistics.median(fits)},
            )
        )
    rows.append(
        Row(
            what=f"last rank's exit to fit() returning, {name} processes",
            estimate=median_with_interval([numbers["end"] for numbers in values["first fit()"]]),
            unit="s",
            bar=Bar(limit=_END_BAR),
        )
    )
    return rows


def _import_rows(rounds: int, quiet: Quiet, samples: dict[str, Any]) -> list[Row]:
    codes = ("import estimators", "from estimators import TensorFlow, MPI")
    values = harness.alternate(rounds, {code: functools.partial(_timed_import, code) for code in codes}, quiet)
    samples["import"] = values
    return [
        Row(
            what=f"`{code}`",
            estimate=median_with_interval([numbers["import"] for numbers in values[code]]),
            unit="s",
            bar=Bar(limit=_IMPORT_BAR),
        )
        for code in codes
    ]


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or 20
    samples: dict[str, Any] = {}
    rows: list[Row] = []
    with harness.own_home():
        quiet = Quiet(options.patience)
        for hosts, processes in _SHAPES:
            rows += _shape_rows(hosts, processes, rounds, quiet, samples)
        rows += _import_rows(rounds, quiet, samples)
    harness.record("launch", rows, samples, quiet, dry=options.dry)
