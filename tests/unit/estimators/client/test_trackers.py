"""What trackers refuse, and the names under which they send values."""

from __future__ import annotations

from typing import Any

import pytest

from estimators import ConfigurationError
from estimators.callbacks import MLflowCallback, WandbCallback
from estimators.client.trackers import mlflow, wandb
from estimators.client.trackers.base import TrackedValue


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("val/loss", "val/loss"), ("größe.1", "größe.1"), ("lr[a]", "lr_a_"), ("//a/../b/", "b"), ("..", "_"), ("", "_")],
)
def test_mlflow_accepts_the_names(name: str, accepted: str) -> None:
    assert mlflow.name_of(name) == accepted


def test_a_metric_named_step_is_sent_to_wandb() -> None:
    sent: list[dict[str, float]] = []
    run: Any = type("Run", (), {"id": "1", "log": staticmethod(sent.append)})()
    wandb._WandbRun(run, False).log([TrackedValue("step", 100.0, 0, 1.0), TrackedValue("loss", 0.5, 0, 2.0)])
    assert sent == [{"step": 100.0, "loss": 0.5, "fleetfit_step": 0, "_timestamp": 2.0}]


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'first'"):
        MLflowCallback(ranks="frist")
    with pytest.raises(ConfigurationError, match="Did you mean 'offline'"):
        WandbCallback(mode="ofline")
    monkeypatch.setattr(MLflowCallback, "library", "not_installed_anywhere")
    with pytest.raises(ConfigurationError, match="fleetfit install mlflow"):
        MLflowCallback()
