"""When a wheel may be used again, and what is said where none can be built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimators.provision import horovod
from estimators.provision.packages import Installation


@pytest.mark.horovod
def test_the_installed_horovod_has_mpi_and_our_revision() -> None:
    if "horovod" not in Installation.of_venv(Path(sys.prefix)).installed():
        pytest.skip("Horovod is not installed")
    script = "import horovod.tensorflow.keras as hvd; assert hvd.mpi_built() and hvd.gloo_built()"
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, capture_output=True)
    version = Installation.of_venv(Path(sys.prefix)).installed()["horovod"]
    assert version == f"{horovod.VERSION}+fleetfit.{horovod.patches.REVISION}"
