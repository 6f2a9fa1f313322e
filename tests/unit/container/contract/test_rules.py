"""The rules of fields: which values each accepts, and the messages about the others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from container.contract import rules
from container.contract.errors import ConfigurationError


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("rule", [rules.number(0), rules.above_0("a number above 0"), rules.whole(0)])
def test_a_number_without_an_upper_limit_is_finite(rule: rules.Rule, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^place must be a .*number .*, got -?(inf|nan)\.$"):
        rule("place", value)


def test_a_number_without_an_upper_limit_may_be_large() -> None:
    assert rules.number(0)("place", 1.7e308) == 1.7e308
    assert rules.whole(0)("place", 10**400) == 10**400
