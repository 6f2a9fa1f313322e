"""What may not be asked to be told of."""

from __future__ import annotations

from typing import Any

import pytest

from estimators import ConfigurationError
from estimators.callbacks import Metric, NotifyCallback
from estimators.client.notifying import Losses


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "needs command="),
        ({"command": "notify-send done"}, r"Write \['notify-send', 'done'\]"),
        ({"command": []}, "list of strings that is not empty"),
        ({"url": "ftp://host"}, "http:// or https://"),
        ({"url": "http:///x"}, "no host"),
        ({"command": ["true"], "on": ["faild"]}, "Did you mean 'failed'"),
        ({"command": ["true"], "stall": 0}, "above 0"),
        ({"command": ["true"], "diverged": "much"}, "above 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        NotifyCallback(**arguments)


@pytest.mark.parametrize(
    ("values", "times", "diverged"),
    [
        ((1.0, 9.0, 11.0, 12.0, 13.0), 10, True),
        ((1.0, 11.0, 12.0, 9.0, 11.0, 12.0), 10, False),
        ((1.0, 0.0, 11.0, 12.0, 13.0), 10, True),  # a 0 in between is no new limit
        ((1.0, -1.0, 11.0, 12.0, 13.0), 10, True),
        ((-1.0, -11.0, -110.0, -1.0), 10, False),
        ((4.0, 3.0, 2.0, 1.5, 1.2), 0.5, False),
    ],
)
def test_three_losses_in_a_row_above_a_multiple_of_the_lowest(
    values: tuple[float, ...], times: float, diverged: bool
) -> None:
    losses = Losses()
    said = [losses.diverge(Metric("loss", value, 0, "algo-1", 0.0, 0), times) for value in values]
    assert said[-1] == diverged and not any(said[:-1])
