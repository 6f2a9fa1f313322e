"""A script under fleetfit as torchrun would start it, from a fresh process."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from estimators import PreflightWarning, PyTorch, TorchDistributed, TrainingJobError

warnings.simplefilter("ignore", PreflightWarning)
try:
    PyTorch(
        sys.argv[1],
        source_dir=str(Path(__file__).parent),
        distribution=TorchDistributed(processes_per_host=2),
        environment={name: value for name, value in os.environ.items() if name.startswith("PEERS_")},
    ).fit(logs=False)
except TrainingJobError:
    sys.exit(1)
