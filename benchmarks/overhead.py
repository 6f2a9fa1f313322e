"""What ``container.distributed`` adds to a step: its Horovod training against one with Horovod by hand.

Both train in the same ranks of one job and take turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks import harness, steps
from benchmarks.harness import Bar, Quiet
from estimators import MPI, TensorFlow

_SCRIPT = harness.HERE / "scripts" / "overhead.py"
_BAR = Bar(limit=0.97, at_least=True)
#: A block of steps, in seconds: a short epoch, since what an epoch's end costs is counted.
_SECONDS = 4.0


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or 12
    with harness.own_home(), tempfile.TemporaryDirectory(prefix="bench-fleetfit-") as folder:
        result = Path(folder) / "result.json"
        estimator = TensorFlow(
            entry_point=_SCRIPT.name,
            source_dir=str(_SCRIPT.parent),
            instance_type="local_process",
            distribution=MPI(processes_per_host=2, custom_mpi_options=steps.YIELD),
            hyperparameters={
                "rounds": rounds,
                "seconds": options.seconds or _SECONDS,
                "result": str(result),
            },
        )
        quiet = Quiet(options.patience)
        while True:  # all rounds are one job: it is repeated as a whole
            quiet.wait()
            steps.fit_quietly(estimator)
            if quiet.was_quiet():
                break
        found = json.loads(result.read_text())
    what = "Horovod in fit(), container.distributed ÷ by hand, 2 ranks"
    rows = steps.rows(what, found["values"], ours="container.distributed", bar=_BAR)
    harness.record("steps-overhead", rows, found, quiet, dry=options.dry)
