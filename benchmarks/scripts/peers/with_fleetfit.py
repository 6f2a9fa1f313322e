"""The script under fleetfit, from a fresh process."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from estimators import MPI, PreflightWarning, TensorFlow, TrainingJobError

warnings.simplefilter("ignore", PreflightWarning)
try:
    TensorFlow(
        entry_point="script.py",
        source_dir=str(Path(__file__).parent),
        instance_type="local_process",
        distribution=MPI(processes_per_host=2),
        environment={name: os.environ[name] for name in ("PEERS_WHAT", "PEERS_FOLDER")},
        model_dir=False,
    ).fit(logs=False)
except TrainingJobError:
    sys.exit(1)
