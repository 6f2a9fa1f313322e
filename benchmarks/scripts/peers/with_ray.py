"""The script under Ray Train, from a fresh process. It runs in the peers' environment."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import ray
import ray.train
import script
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def loop() -> None:
    """A worker."""
    script.work(ray.train.get_context().get_world_rank())


ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
try:
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
except Exception:  # noqa: BLE001 - any way in which it tells of the failure
    sys.exit(1)
