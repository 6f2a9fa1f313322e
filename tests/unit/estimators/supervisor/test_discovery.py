"""Lines of hosts from outside, in Horovod's form; a script and a file of them, watched."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from waiting import until

from estimators.backends.hosts import discovery
from estimators.client import host_discovery
from estimators.job.errors import ConfigurationError
from estimators.records.record import DISCOVERED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a\nb:4\n", {"a": 2, "b": 4}),
        ("  a : 3 \n\n# comment\n", {"a ": 3}),
        ("a:0\nb", {"b": 2}),
        ("a\na:1", {"a": 1}),
    ],
)
def test_lines(text: str, found: dict[str, int]) -> None:
    if "a " in found:
        with pytest.raises(ValueError, match="neither"):
            discovery.parse_hosts(text, 2)
        return
    assert discovery.parse_hosts(text, 2) == found


@pytest.mark.parametrize("line", ["a:b", "a:-1", ":3", "two words"])
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="neither 'host' nor 'host:slots'"):
        discovery.parse_hosts(f"fine\n{line}", 1)


def test_a_function_says_names_or_slots() -> None:
    assert host_discovery.lines(["a", "b"]) == "a\nb\n"
    assert host_discovery.lines({"a": 2, "b": 1}) == "a:2\nb:1\n"
    for answer in ("ab", 3, None):
        with pytest.raises(ConfigurationError, match="must return names"):
            host_discovery.lines(answer)


def test_a_function_is_called_until_the_job_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_discovery, "EVERY_S", 0.01)
    answers: list[object] = [["a"], ["a"], ValueError("away"), ["a", "b"]]
    said: list[str] = []

    def function() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def is_over() -> bool:
        if (tmp_path / DISCOVERED).exists():
            said.append((tmp_path / DISCOVERED).read_text())
        return not answers

    with pytest.warns(UserWarning, match="raised ValueError\\('away'\\); nothing changes"):
        host_discovery.follow(function, tmp_path, is_over)
        until(lambda: not any(thread.name == "fleetfit-discovery" for thread in threading.enumerate()))
    assert list(dict.fromkeys(said)) == ["a\n", "a\nb\n"]
