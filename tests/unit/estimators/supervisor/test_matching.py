"""The search for metrics in the lines of a job."""

from __future__ import annotations

import pytest

from estimators.job.metrics import Line, MetricPattern
from estimators.supervisor import matching
from estimators.supervisor.matching import Matching

LOSS = MetricPattern("loss", "loss: ([0-9.]+)")
SLOW = MetricPattern("slow", r"^(?:a|aa)+([0-9])$")
SLOW_LINE = "a" * 64 + "!"


def found(search: Matching, *texts: str) -> list[tuple[str, str]]:
    """Return the metrics in some lines, with what was caught of each."""
    return [
        (definition.name, caught.text)
        for text in texts
        for definition, caught in search.search(Line(text, "algo-1", 0, 1, 0))
    ]


def test_each_line_is_searched_for_every_metric() -> None:
    search = Matching([LOSS, MetricPattern("epoch", "epoch ([0-9]+)"), MetricPattern("never", "x(=[0-9])?$")])
    lines = ("epoch 1 loss: 2.5", "nothing", "loss: 2é", "x", "loss: " + "1" * 500)
    assert found(search, *lines) == [("loss", "2.5"), ("epoch", "1"), ("loss", "2"), ("loss", "1" * 400)]
    assert not search.warnings


def test_the_text_beside_a_group_is_known_unless_the_expression_matched_it() -> None:
    search = Matching([LOSS, MetricPattern("whole", "([0-9.]+);")])
    (_, loss), (_, whole) = search.search(Line("a loss: 2.5; b", "algo-1", 0, 1, 0))
    assert (loss.before, loss.text, loss.after) == ("a loss: ", "2.5", "; b")
    assert (whole.before, whole.text, whole.after) == ("a loss: ", "2.5", "")


def test_a_match_of_another_group_than_the_first_is_told_once() -> None:
    search = Matching([MetricPattern("loss", "train: ([0-9.]+)|test: ([0-9.]+)"), MetricPattern("x", "x(=[0-9])?$")])
    assert found(search, "train: 1", "test: 2", "test: 3", "x") == [("loss", "1")]
    (warning,) = search.warnings
    assert "metric 'loss'" in warning and "matched 'test: 2' without its first group" in warning


def test_a_regex_that_takes_exponential_time_is_left_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_SECONDS", 0.2)
    monkeypatch.setattr(matching, "_WINDOW_LINES", 3)
    search = Matching([SLOW, LOSS])
    assert found(search, "loss: 1", SLOW_LINE, "loss: 2") == [("loss", "1"), ("loss", "2")]
    (warning,) = search.warnings
    assert "metric 'slow'" in warning and SLOW.regex in warning and "on some lines" in warning
    assert found(search, "aaa7", SLOW_LINE, "loss: 3") == [("slow", "7"), ("loss", "3")]  # in the next window, again
    assert len(search.warnings) == 2 and "no longer searches" in search.warnings[1]
    assert found(search, "aaa7", "loss: 4", "loss: 5") == [("loss", "4"), ("loss", "5")]
    assert len(search.warnings) == 2
