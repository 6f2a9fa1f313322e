"""Which values of metrics say that a training has diverged."""

from __future__ import annotations

import math
from typing import Any

import pytest

from container.contract import diverging

INF = math.inf


@pytest.mark.parametrize(
    ("name", "value", "diverged"),
    [
        ("loss", math.nan, True),
        ("auc", math.nan, True),
        ("loss", INF, True),
        ("val_loss", -INF, True),
        ("Loss/train", INF, True),
        ("dense_1_mse", INF, True),
        ("perplexity", INF, True),
        ("gradient_norm", INF, False),  # as with a scaled loss, now and then
        ("best_loss", INF, False),  # before the first
        ("min_val_loss", INF, False),
        ("loss_scale", INF, False),
        ("loss", 1e300, False),
        ("loss", 3, False),
        ("loss", True, False),
        ("loss", "nan", False),
        ("loss", None, False),
    ],
)
def test_has_diverged(name: str, value: Any, diverged: bool) -> None:
    assert diverging.has_diverged(name, value) is diverged


def test_it_says_where() -> None:
    text = diverging.describe("loss", math.nan, rank=3, place={"step": 120, "epoch": 2.0, "loss": math.nan})
    assert text == "metric 'loss' is not a number (NaN) at epoch 2, step 120; rank 3 reported it."
    assert diverging.describe("loss", INF, rank=None, process="chief", place={}) == (
        "metric 'loss' is infinite; chief reported it."
    )
    assert "minus infinity" in diverging.describe("loss", -INF, rank=0, place={"step": None})
