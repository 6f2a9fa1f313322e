"""The rules of fields: which values each accepts, and the messages about the others."""

from __future__ import annotations

import dataclasses
import enum
import math
from pathlib import Path
from typing import Any

import pytest

from container.contract import rules
from container.contract.channels import HostChannel
from container.contract.errors import ConfigurationError


@pytest.mark.parametrize("rule", [rules.above_0("a number above 0"), rules.money])
@pytest.mark.parametrize("value", [1, 1.0])
def test_numbers_that_are_equal_are_the_same_value(rule: rules.Rule, value: float) -> None:
    assert repr(rule("x", value)) == "1.0"


@pytest.mark.parametrize(
    ("rule", "value", "text"),
    [
        (rules.money, 1e9, "x must be an amount in US dollars above 0 and below 1,000,000,000, got 1000000000.0."),
        (rules.money, 0, "above 0"),
        (rules.money, "12", "x must be an amount in US dollars above 0"),
        (rules.above_0("a number of cores over 0"), 0, "x must be a number of cores over 0, got 0."),
        (rules.above_0("a number of cores over 0"), 10**400, "x must be a number of cores over 0"),
        (rules.above_0("a number of cores over 0"), math.nan, "x must be a number of cores over 0, got nan."),
        (rules.seconds(1, 10), 11, "x must be a number of seconds from 1 to 10, got 11."),
        (rules.seconds(1, 10), True, "x must be a number of seconds from 1 to 10, got True."),
    ],
)
def test_other_numbers_are_refused_with_the_range(rule: rules.Rule, value: Any, text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        rule("x", value)
    assert text in str(refused.value)


@dataclasses.dataclass
class Optional:
    """Fields that may be None, and one that may not."""

    size: int | None = rules.option(rules.whole(1))
    twice: int | None = rules.option(rules.or_none(rules.whole(1)))
    always: int | None = rules.option(rules.or_none(rules.whole(1)), 5)
    never: int = rules.option(rules.whole(1), 5)
    names: tuple[str, ...] | None = rules.option(rules.words(item=rules.text()))

    def __post_init__(self) -> None:
        rules.check(self, "{name}")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"size": 0}, "size must be a whole number of at least 1, or None, got 0."),
        ({"twice": 0}, "twice must be a whole number of at least 1, or None, got 0."),
        ({"always": 0}, "always must be a whole number of at least 1, or None, got 0."),
        ({"never": 0}, "never must be a whole number of at least 1, got 0."),
        ({"never": None}, "never must be a whole number of at least 1, got None."),
        ({"names": "a"}, "names must be a list, or None, got 'a'. Write ['a']."),
        ({"names": [""]}, "names must be a list of strings, got '' in it."),
    ],
)
def test_none_is_among_the_values_of_a_field_that_may_be_none(values: dict[str, Any], text: str) -> None:
    assert Optional(always=None).always is None
    with pytest.raises(ConfigurationError) as refused:
        Optional(**values)
    assert str(refused.value) == text


def test_a_number_of_seconds_stays_as_the_user_has_written_it() -> None:
    assert (repr(rules.seconds()("x", 99)), repr(rules.seconds()("x", 1.5))) == ("99", "1.5")


def test_only_lists_of_paths_take_paths() -> None:
    assert rules.words(paths=True)("x", [Path("a"), "b"]) == ("a", "b")
    with pytest.raises(ConfigurationError, match="must be a list of strings"):
        rules.words()("x", [Path("a")])


def test_the_largest_amount_is_below_the_limit() -> None:
    assert rules.money("x", math.nextafter(1e9, 0)) < 1e9


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("rule", [rules.number(0), rules.above_0("a number above 0"), rules.whole(0)])
def test_a_number_without_an_upper_limit_is_finite(rule: rules.Rule, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^place must be a .*number .*, got -?(inf|nan)\.$"):
        rule("place", value)


def test_a_number_without_an_upper_limit_may_be_large() -> None:
    assert rules.number(0)("place", 1.7e308) == 1.7e308
    assert rules.whole(0)("place", 10**400) == 10**400


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("rule", "place", "value", "message"),
    [
        (rules.path, "dir", "", "dir must be a string that is not empty, got ''."),
        (rules.path, "dir", 3, "dir must be a string, got 3."),
        (rules.one_of("red"), "f(colour=…)", "rde", "unknown f(colour=…) 'rde'. Did you mean 'red'? Allowed: 'red'."),
        (rules.one_of("red"), "cell 'a': colour", 3, "cell 'a': unknown colour 3. Allowed: 'red'."),
        (rules.member(Colour), "cell 'a': colour", 3, "cell 'a': unknown colour 3. Allowed: 'red'."),
        (
            rules.pair("(least, most)", rules.number(0)), "f(pair=…)", (60, 1),
            "f(pair=…) must be (least, most), got (60, 1). The first, 60, is above the second, 1.",
        ),
        (rules.whole(0, 9, "9 first"), "n", 2.0, "n must be a whole number from 0 to 9 (9 first), got 2.0. Write 2."),
    ],
)  # fmt: skip
def test_the_messages_about_wrong_values(rule: rules.Rule, place: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rule(place, value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [({"mode": "Pip"}, "channel 'a': unknown mode 'Pip'."), ({"nope": 1}, "channel 'a': unknown key 'nope'.")],
)
def test_messages_about_a_channel_begin_with_its_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        HostChannel.from_dict("a", {"uri": "s3://bucket", **values})
    assert str(caught.value).startswith(message)
