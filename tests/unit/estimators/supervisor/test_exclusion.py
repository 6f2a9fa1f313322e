"""A rule of the user's own for how long a host is left out."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from estimators.job.errors import ConfigurationError
from estimators.supervisor.elastic.exclusion import Exclusion, load_policy
from estimators.supervisor.elastic.policy import GrowingCooldown

RULES = """\
import math

class Twice:
    left = 2

    def failed(self, host, now):
        self.left -= 1
        return now + 5 if self.left else math.inf

class Wrong:
    def failed(self, host, now):
        return math.nan

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


def exclusion(rule: str) -> tuple[Exclusion, list[str]]:
    """A cooldown under a rule, and what is said in the supervisor's log."""
    said: list[str] = []
    log: Any = SimpleNamespace(say=said.append)
    return Exclusion(GrowingCooldown(1.0, 6.0), load_policy(rule), log), said


def test_a_rule_holds_over_the_cooldown(rules: Path) -> None:
    hosts, said = exclusion(f"{rules}:Twice")
    assert [hosts.failed("algo-1", 10.0) for _ in range(2)] == [15.0, math.inf]
    assert said == []


@pytest.mark.parametrize(("name", "words"), [("Wrong", "NaN"), ("Raises", "KeyError: 'algo-1'")])
def test_where_a_rule_fails_the_cooldown_holds_and_the_log_says_so(rules: Path, name: str, words: str) -> None:
    hosts, said = exclusion(f"{rules}:{name}")
    assert [hosts.failed("algo-1", 10.0) for _ in range(2)] == [11.0, 12.0]
    assert len(said) == 2 and words in said[0]


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
