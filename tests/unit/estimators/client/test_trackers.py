"""What trackers refuse."""

from __future__ import annotations

import pytest

from estimators import ConfigurationError
from estimators.callbacks import MLflowCallback, WandbCallback


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'first'"):
        MLflowCallback(ranks="frist")
    with pytest.raises(ConfigurationError, match="Did you mean 'offline'"):
        WandbCallback(mode="ofline")
    monkeypatch.setattr(MLflowCallback, "library", "not_installed_anywhere")
    with pytest.raises(ConfigurationError, match="fleetfit install mlflow"):
        MLflowCallback()
