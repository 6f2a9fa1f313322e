"""Trains a digits classifier on two local hosts with Horovod, through ``estimator.fit()``: what `make train` runs.

Where Horovod could not be built it says so and trains in one process.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from estimators import MPI, TensorFlow, TrainingJobError

ROOT = Path(__file__).resolve().parent.parent
#: What the script prints at the end of each epoch, as metrics.
METRICS = [
    {"Name": name, "Regex": rf"(?:^| ){name}: ([0-9.eE+-]+)"}
    for name in ("loss", "samples_per_second", "val_loss", "val_accuracy")
]


def main() -> int:
    """Train, and say how it went by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--processes", type=int, default=1, help="ranks on each host")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    distribution = MPI(processes_per_host=options.processes)
    if importlib.util.find_spec("horovod") is None:
        print("Horovod is not installed, so this trains in one process; `fleetfit doctor` says what is missing.")
        distribution, options.hosts = None, 1

    estimator = TensorFlow(
        entry_point="train_horovod.py",
        source_dir=str(ROOT / "entrypoints"),
        instance_count=options.hosts,
        instance_type="local_process",
        distribution=distribution,
        hyperparameters={"epochs": options.epochs, "batch-size": 32},
        metric_definitions=METRICS,
        base_job_name="digits",
    )
    data = ROOT / "data" / "digits"
    try:
        estimator.fit({"train": str(data / "train"), "validation": str(data / "validation")})
    except TrainingJobError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
