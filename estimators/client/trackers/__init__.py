"""Callbacks that tell experiment trackers of jobs: MLflow, Weights & Biases, TensorBoard (docs/trackers.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.client.trackers.base import Tracker

#: What may be written for a tracker.
NAMES = ("mlflow", "wandb", "tensorboard")


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
    if name == "mlflow":
        from estimators.client.trackers.mlflow import MLflowCallback

        return MLflowCallback(place or None)
    if name == "wandb":
        from estimators.client.trackers.wandb import WandbCallback

        return WandbCallback(place) if place else WandbCallback()
    from estimators.client.trackers.tensorboard import TensorBoardCallback

    return TensorBoardCallback(place) if place else TensorBoardCallback()
