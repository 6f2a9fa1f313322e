"""What may not be asked to be told of."""

from __future__ import annotations

from typing import Any

import pytest

from estimators import ConfigurationError
from estimators.callbacks import NotifyCallback


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
