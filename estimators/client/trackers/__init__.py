"""Define callbacks that send jobs to MLflow, Weights & Biases and TensorBoard (docs/trackers.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.client.trackers.base import Tracker

#: Names of trackers.
_CALLBACKS = {"mlflow": "MLflowCallback", "wandb": "WandbCallback", "tensorboard": "TensorBoardCallback"}
NAMES = tuple(_CALLBACKS)


def parse(text: str) -> Tracker:
    """Return the callback for a text from the command line, such as ``mlflow``, ``mlflow=URI`` or ``wandb=PROJECT``.

    Raises:
        ConfigurationError: the tracker is unknown, or the tracker's library is not installed.
    """
    from container.contract.names import unknown
    from estimators.job.errors import ConfigurationError

    name, _, place = text.partition("=")
    if name not in NAMES:
        raise ConfigurationError(unknown("tracker", name, NAMES))
    module = importlib.import_module(f"estimators.client.trackers.{name}")
    made: Tracker = getattr(module, _CALLBACKS[name])(*([place] if place else []))
    return made
