"""A rule of the user's own for how long a host is left out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from estimators.job.errors import ConfigurationError
from estimators.supervisor.elastic.exclusion import Exclusion, load_policy
from estimators.supervisor.elastic.policy import GrowingCooldown


class Log:
    """The supervisor's log."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


RULES = """\
import math

class Twice:
    def __init__(self):
        self.left = 2

    def failed(self, host, now):
        self.left -= 1
        return now + 5 if self.left else math.inf

class Wrong:
    answer = math.nan

    def failed(self, host, now):
        return self.answer

class Needs:
    def __init__(self, what): ...

class Raises:
    def failed(self, host, now):
        raise KeyError(host)
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return path


def test_a_rule_holds_over_the_cooldown(rules: Path) -> None:
    log = Log()
    exclusion = Exclusion(GrowingCooldown(1.0, 6.0), load_policy(f"{rules}:Twice"), log)  # type: ignore[arg-type]
    assert [exclusion.failed("algo-1", 10.0) for _ in range(2)] == [15.0, math.inf]
    assert log.said == []


@pytest.mark.parametrize(("name", "words"), [("Wrong", "NaN"), ("Raises", "KeyError: 'algo-1'")])
def test_where_a_rule_fails_the_cooldown_holds_and_the_log_says_so(rules: Path, name: str, words: str) -> None:
    log = Log()
    exclusion = Exclusion(GrowingCooldown(1.0, 6.0), load_policy(f"{rules}:{name}"), log)  # type: ignore[arg-type]
    assert [exclusion.failed("algo-1", 10.0) for _ in range(2)] == [11.0, 12.0]
    assert len(log.said) == 2 and words in log.said[0]


def test_a_rule_of_a_package() -> None:
    assert isinstance(load_policy("estimators.supervisor.elastic.policy:GrowingCooldown"), GrowingCooldown)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("{rules}:Missing", "no attribute 'Missing'"),
        ("{rules}:Needs", "what"),
        ("{rules}:math", "not callable"),
        ("json:JSONDecoder", r"no method failed\(host, now\)"),
        ("no.such.package:Rule", "No module named"),
        ("{rules}.py:Rule", "No such file"),
    ],
)
def test_what_is_no_rule_is_refused_by_its_name(rules: Path, rule: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_policy(rule.format(rules=rules))
    assert str(caught.value).startswith("exclusion=")
