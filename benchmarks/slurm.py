"""What ``fit()`` costs on a Slurm that runs: to the script's first line, beside ``srun`` of the same script by hand.

The cluster is that of the tests: munged, slurmctld, and a slurmd in each of four network namespaces of this machine
(root, and Debian's ``slurm-wlm`` and ``munge``). Both ask for two whole nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Numbers, Quiet, Row, median_with_interval

_HOSTS = 2
_SCRIPT = "import time; print(f'at {time.time()}', flush=True)\n"


def _bare(script: Path) -> Numbers:
    """Seconds to the last node's first line, and to the end, of ``srun``."""
    start = time.time()
    words = ["srun", f"--nodes={_HOSTS}", "--ntasks-per-node=1", "--exclusive", "--chdir=/"]
    done = subprocess.run(
        [*words, sys.executable, str(script)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    end = time.time()
    return {"line": _last(done.stdout.splitlines()) - start, "all": end - start}


def _fit(script: Path) -> Numbers:
    """The same of ``fit()``."""
    from estimators import TensorFlow

    estimator = TensorFlow(
        entry_point=script.name,
        source_dir=str(script.parent),
        instance_count=_HOSTS,
        instance_type="slurm",
        model_dir=False,
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        start = time.time()
        job = estimator.fit()
        end = time.time()
    lines = [line.text for line in job.log_lines() if line.rank is not None]
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    assert job.status == "Completed"
    while subprocess.run(["squeue", "--noheader"], check=True, capture_output=True).stdout:
        time.sleep(0.05)  # the nodes are being given back
    return {"line": _last(lines) - start, "all": end - start}


def _last(lines: list[str]) -> float:
    times = [float(line.split()[1]) for line in lines if line.startswith("at ")]
    assert len(times) == _HOSTS, lines
    return max(times)


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    sys.path.append(str(harness.HERE.parent / "tests" / "support"))
    import fleet as fleets
    import slurm

    assert slurm.possible(), "it needs root, and Debian's slurm-wlm and munge"
    samples: dict[str, Any] = {}
    with harness.own_home(), fleets.shared(4) as fleet, slurm.shared(fleet) as cluster:
        os.environ.update(cluster.environment)
        os.environ.pop("TMPDIR", None)
        # The nodes have folders for temporary files of their own.
        folder = fleet.marks / "code"
        folder.mkdir()
        script = folder / "train.py"
        script.write_text(_SCRIPT, encoding="utf-8")
        quiet = Quiet(options.patience)
        values = harness.alternate(
            options.alternations or 10, {"srun": lambda: _bare(script), "fit()": lambda: _fit(script)}, quiet
        )
        samples[f"{_HOSTS} nodes"] = values
    rows = []
    for what, key in (("to the script's first line", "line"), ("to the end", "all")):
        bare, ours = ([numbers[key] for numbers in values[way]] for way in ("srun", "fit()"))
        rows.append(
            Row(
                what=f"fit() − bare srun, {what}, {_HOSTS} nodes",
                estimate=median_with_interval([one - other for one, other in zip(ours, bare, strict=True)]),
                unit="s",
            )
        )
        rows.append(
            Row(
                what=f"fit() ÷ bare srun, {what}, {_HOSTS} nodes",
                estimate=median_with_interval([one / other for one, other in zip(ours, bare, strict=True)]),
                unit="",
            )
        )
    harness.record("slurm", rows, samples, quiet, dry=options.dry)
