"""Callbacks that tell experiment trackers of jobs: MLflow, Weights & Biases, TensorBoard (docs/trackers.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.client.trackers.base import Tracker

#: What may be written for a tracker.
_CALLBACKS = {"mlflow": "MLflowCallback", "wandb": "WandbCallback", "tensorboard": "TensorBoardCallback"}
NAMES = tuple(_CALLBACKS)


def parse(text: str) -> Tracker:
    """Return the tracker of ``mlflow``, ``mlflow=URI``, ``wandb=PROJECT`` or ``tensorboard=FOLDER``.

    Raises:
        ConfigurationError: there is no such tracker, or its library is missing.
    """
    from container.contract.names import unknown
    from estimators.job.errors import ConfigurationError

    name, _, place = text.partition("=")
    if name not in NAMES:
        raise ConfigurationError(unknown("tracker", name, NAMES))
    module = importlib.import_module(f"estimators.client.trackers.{name}")
    made: Tracker = getattr(module, _CALLBACKS[name])(*([place] if place else []))
    return made
