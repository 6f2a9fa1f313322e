"""Lines of hosts from outside, in Horovod's form; a script and a file of them, watched."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from values import Told, VirtualLoop
from waiting import until

from estimators.backends.hosts import discovery
from estimators.client import host_discovery
from estimators.job.errors import ConfigurationError
from estimators.records.record import DISCOVERED
from estimators.records.states import TrainingJobStatus


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("  a\n\n# comment\nb:4 \n", {"a": 2, "b": 4}),
        ("a:0\nb", {"b": 2}),
        ("a\na:1", {"a": 1}),
    ],
)
def test_lines(text: str, found: dict[str, int]) -> None:
    assert discovery.parse_hosts(text, 2) == found


@pytest.mark.parametrize(
    "line", ["a : 3", "a:b", "a:-1", ":3", "two words", "tab\tbed", "h\ufffdst", "n\x00l", "a:2:3"]
)
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="neither 'host' nor 'host:slots'"):
        discovery.parse_hosts(f"fine\n{line}", 1)


def test_a_function_says_names_or_slots() -> None:
    assert host_discovery.lines(["a", "b"]) == "a\nb\n"
    assert host_discovery.lines({"a": 2, "b": 1}) == "a:2\nb:1\n"
    for answer in ("ab", 3, None):
        with pytest.raises(ConfigurationError, match="must return a list of host names"):
            host_discovery.lines(answer)


def test_a_function_is_called_until_the_job_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_discovery, "EVERY_S", 0.01)
    answers: list[object] = [["a"], ["a"], ["h\udcff"], ValueError("away"), ["a", "b"]]
    said: list[str] = []

    def function() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    class Job:
        record = SimpleNamespace(path=tmp_path)

        @property
        def status(self) -> TrainingJobStatus:
            if (tmp_path / DISCOVERED).exists():
                said.append((tmp_path / DISCOVERED).read_text())
            return TrainingJobStatus.IN_PROGRESS if answers else TrainingJobStatus.COMPLETED

    with (
        pytest.warns(UserWarning, match="raised UnicodeEncodeError"),
        pytest.warns(match="raised ValueError\\('away'\\)"),
    ):
        host_discovery.follow(function, cast(Any, Job()))
        until(lambda: not any(thread.name == "fleetfit-discovery" for thread in threading.enumerate()))
    assert list(dict.fromkeys(said)) == ["a\n", "a\nb\n"]


def test_a_place_is_gone_when_two_answers_in_a_row_lack_it() -> None:
    answers, both = discovery.DiscoveryFilter(), {"a": 1, "b": 2}
    for found, places, doubtful in (
        (both, both, False),
        ({}, both, True),  # a file that is being written
        (both, both, False),
        ({"a": 1, "b": 3}, {"a": 1, "b": 3}, False),
        ({"c": 1}, {"a": 1, "b": 3}, True),
        ({"c": 1}, {"c": 1}, False),
        ({"c": 1, "d": 1, "e": 1}, {"c": 1, "d": 1, "e": 1}, False),
        ({"c": 1, "d": 1}, {"c": 1, "d": 1, "e": 1}, True),
        ({"d": 1, "e": 1}, {"c": 1, "d": 1, "e": 1}, True),  # as of a script that pings
        ({"d": 1, "e": 1}, {"d": 1, "e": 1}, False),
        ({}, {"d": 1, "e": 1}, True),
        (None, {"d": 1, "e": 1}, False),  # the script failed
        ({}, {"d": 1, "e": 1}, True),
        ({}, {}, False),
    ):
        if found is None:
            answers.fail()
        else:
            assert answers.take(found) == places
        assert answers.doubtful == doubtful


def said_of(file: Path, contents: Sequence[bytes]) -> list[object]:
    """Return what is told of a file that has another content at each look, and at last the same twice."""
    loop, told = VirtualLoop(), Told()
    watched = discovery.PlaceDiscovery(loop, file, default_slots=1, folder=file.parent)
    for number, content in enumerate(contents):
        file.write_bytes(content)
        os.utime(file, (number, number))
        if number == 0:
            watched.start(told)
        loop.advance(discovery.SOON_S)
    loop.advance(3 * discovery.SOON_S)
    watched.close()
    loop.close()
    return told.said


def test_a_file_that_is_cut_for_a_moment_takes_no_host_away(tmp_path: Path) -> None:
    heard = said_of(tmp_path / "hosts", [b"a\nb\n", b"", b"a\nb\nc\n", b"a\n"])
    assert heard == [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 1}]


def test_a_file_that_is_no_utf_8_changes_nothing(tmp_path: Path) -> None:
    """One that is written on Windows may begin with a mark."""
    file = tmp_path / "hosts"
    refusal = f"{file}: 'b\N{REPLACEMENT CHARACTER}' is neither 'host' nor 'host:slots'."
    assert said_of(file, [b"\xef\xbb\xbfa:2\r\nb\r\n", b"a:2\nb\xff\n"]) == [{"a": 2, "b": 1}, refusal]


def test_a_file_that_may_come_later_is_waited_for(tmp_path: Path) -> None:
    loop, told, file = VirtualLoop(), Told(), tmp_path / "hosts"
    watched = discovery.PlaceDiscovery(loop, file, default_slots=1, folder=tmp_path, may_come_later=True)
    watched.start(told)
    loop.advance(60.0)
    assert told.said == []
    file.write_text("a\n")
    loop.advance(discovery.SOON_S)
    file.unlink()
    loop.advance(60.0)
    assert told.said == [{"a": 1}, f"{file} does not exist"]
    watched.close()
    loop.close()
