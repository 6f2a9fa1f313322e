"""Metrics: definitions that are checked early, extraction over lines, frames and final values."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from container.contract.wire import Event, Piece
from estimators.job.errors import ConfigurationError
from estimators.job.metrics import (
    COLUMNS,
    LINE_LIMIT,
    FinalMetrics,
    Line,
    MetricExtractor,
    MetricPattern,
    metrics_frame,
    parse_metric_definitions,
    with_numbers,
)
from estimators.job.numbers import Caught, cut_number, number_of
from estimators.supervisor.noticing import Divergence

LOSS = MetricPattern("loss", r"loss: ([0-9.eE+-]+|nan)")


def found(extractor: MetricExtractor, lines: list[Line | None]) -> list[Event]:
    """What the lines have, searched on the spot."""
    events: list[Event] = []
    for line in lines:
        for definition in extractor.definitions:
            match = definition.compile().search(line.text) if line is not None else None
            if line is not None and match is not None and match.group(1) is not None:
                start, end = match.span(1)
                after = line.text[end:] if end == match.end() else ""
                events += extractor.events(line, definition, Caught(match[1], line.text[:start], after))
    return events


def feed(extractor: MetricExtractor, *pieces: bytes, process: str | None = "rank 1") -> list[Event]:
    lines = [extractor.feed(Piece("algo-1", process, piece), time_ns=5) for piece in pieces]
    return found(extractor, [*lines, *extractor.finish(time_ns=5)])


def values(events: list[Event]) -> list[Any]:
    return [event.data.get("value") for event in events if event.kind == "metric"]


def metric(name: str, value: float, *, rank: int | None = 0, time_ns: int = 1, attempt: int = 0) -> Event:
    data = {"name": name, "value": value}
    return Event(kind="metric", host="algo-1", time_ns=time_ns, rank=rank, attempt=attempt, data=data)


# --- definitions ---


def test_sagemakers_form_reads_and_writes() -> None:
    given = [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
    assert [item.to_dict() for item in parse_metric_definitions(given)] == given
    assert parse_metric_definitions(None) == ()
    assert parse_metric_definitions([LOSS]) == (LOSS,)


@pytest.mark.parametrize(
    ("definitions", "message"),
    [
        ([{"Name": "a", "Regex": "loss: [0-9]+"}], "has no group. Put parentheses around the number"),
        ([{"Name": "a", "Regex": "(?:loss): (?:[0-9]+)"}], "has no group"),
        ([{"Name": "a", "Regex": "loss: ([0-9]+"}], r"missing \), unterminated subpattern at position 6"),
        ([{"Name": "a", "Regexp": "(1)"}], "unknown key.*'Regexp'.*Did you mean 'Regex'"),
        ([{"Name": "a"}], "'Regex' is missing"),
        ([{"Name": "", "Regex": "(1)"}], "'Name' must be a string"),
        ([{"Name": "a", "Regex": 1}], "'Regex' of 'a' must be a string, got 1"),
        ({"Name": "a", "Regex": "(1)"}, "must be a list"),
        (["loss"], "each definition must be"),
    ],
)
def test_bad_definitions_are_refused_with_the_remedy(definitions: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_metric_definitions(definitions)


def test_a_bad_regex_is_shown_with_its_position() -> None:
    with pytest.raises(ValueError, match=r"the regex 'acc: \(\[0-9\+' is not valid: .* at position 6\.$"):
        MetricPattern("acc", "acc: ([0-9+")


# --- extraction ---


def test_metrics_are_found_line_by_line() -> None:
    events = feed(MetricExtractor([LOSS]), b"epoch 1 loss: 0.5\n", b"nothing\n", b"loss: 1e-3\r", b"loss: nan\r\n")
    assert values(events)[:2] == [0.5, 0.001] and math.isnan(values(events)[2])
    assert (events[0].rank, events[0].host, events[0].data["name"], events[0].time_ns) == (1, "algo-1", "loss", 5)


def test_a_line_in_parts_is_joined_and_an_unended_one_is_not_lost() -> None:
    assert values(feed(MetricExtractor([LOSS]), b"lo", b"ss: 0.", b"25\n", b"loss: 2")) == [0.25, 2.0]


def test_a_metric_is_taken_once_per_line_where_it_matches_first() -> None:
    assert values(feed(MetricExtractor([LOSS]), b"loss: 1 val_loss: 2\n")) == [1.0]


def test_of_several_groups_the_first_is_the_number() -> None:
    # As in AWS's own examples of metric definitions.
    loss = MetricPattern("loss", r"'loss': ([0-9]+(.|e\-)[0-9]+),?")
    assert values(feed(MetricExtractor([loss]), b"{'loss': 0.25, 'epoch': 2}\n")) == [0.25]
    assert values(feed(MetricExtractor([loss]), b"{'loss': 5e-05}\n")) == [5e-05]


def test_processes_are_not_mixed() -> None:
    extractor = MetricExtractor([LOSS])
    assert extractor.feed(Piece("algo-1", "rank 0", b"loss: 1"), time_ns=1) is None
    one = extractor.feed(Piece("algo-1", "rank 1", b"loss: 3\n"), time_ns=1)
    other = extractor.feed(Piece("algo-1", "rank 0", b"2\n"), time_ns=1)
    assert values(found(extractor, [one, other])) == [3.0, 12.0]


def test_memory_is_bounded_for_lines_that_never_end() -> None:
    extractor = MetricExtractor([LOSS])
    part = b"x" * (1 << 19)
    assert values(feed(extractor, b"loss: 7 ", *[part] * 20, b"\n")) == [7.0]
    assert values(feed(extractor, b"loss: 7 " + part * 20 + b"\n")) == [7.0]
    extractor.feed(Piece("algo-1", "rank 0", part * 5), time_ns=1)
    assert all(len(rest) <= LINE_LIMIT for rest in extractor._rest.values())


def test_what_is_not_a_number_is_warned_of_once() -> None:
    events = feed(MetricExtractor([MetricPattern("a", "a=(.*)")]), b"a=b\n", b"a=c\n", b"a=1\n")
    assert [event.kind for event in events] == ["warning", "metric"]
    assert "captured 'b', which is not a number" in events[0].data["message"]


def test_without_definitions_nothing_is_done() -> None:
    assert feed(MetricExtractor([]), b"loss: 1\n") == []


# --- what is not a number ---


def not_numbers(events: list[Event]) -> list[dict[str, Any]]:
    return [{**event.data, "value": str(event.data["value"])} for event in events if event.kind == "not_a_number"]


def feed_both(extractor: MetricExtractor, *texts: str) -> list[Event]:
    """As the supervisor does: each line, and its stand-in where it has one."""
    lines: list[Line | None] = []
    for text in texts:
        line = extractor.feed(Piece("algo-1", "rank 1", text.encode() + b"\n"), time_ns=5)
        assert line is not None
        lines += [line, with_numbers(line)]
    return found(extractor, lines)


@pytest.mark.parametrize(
    ("regex", "line", "wanted"),
    [
        ("loss: ([0-9.]+)", "45/120 [====>.....] - ETA: 1s - loss: nan", {"value": "nan", "step": 45}),
        ("loss: ([0-9\\.]+)", "\x1b[1m8/8\x1b[0m - 1s - loss: NaN - acc: 0.1", {"value": "nan", "step": 8}),
        (r"loss: (\d\.\d{4})", "loss: nan", {"value": "nan"}),
        ("loss=(.*?);", "step 7, loss=inf;", {"value": "inf", "step": 7}),
        ("loss=([0-9.]+)", "epoch=3 iteration 40 loss=-Infinity", {"value": "-inf", "epoch": 3, "step": 40}),
        (r"'loss': ([0-9]+(.|e\-)[0-9]+),?", "{'loss': nan, 'lr': 0.1}", {"value": "nan"}),
        ("loss: ([0-9.]+)", "loss: nan - val_loss: 0.5", {"value": "nan"}),
        # The name of something, a number of another metric, or no number at all.
        ("loss: ([0-9.]+)", "nanny inf_1 loss: 0.5 info", None),
        ("loss: ([0-9.]+)", "lr: nan loss: 0.5", None),
        ("loss: ([0-9.]+)", "loss of nan", None),
    ],
)
def test_nan_is_found_where_the_regex_wants_a_number(regex: str, line: str, wanted: dict[str, Any] | None) -> None:
    events = feed_both(MetricExtractor([MetricPattern("loss", regex)]), line)
    assert not_numbers(events) == ([{"name": "loss", **wanted}] if wanted is not None else [])


def test_keras_says_the_epoch_before() -> None:
    extractor = MetricExtractor([MetricPattern("loss", "loss: ([0-9.]+)")])
    events = feed_both(extractor, "Epoch 2/9", "8/8 - loss: 0.5", "Epoch 3/9", "8/8 - loss: nan")
    assert values(events) == [0.5]  # as on SageMaker, whose regexes find the others only
    assert not_numbers(events) == [{"name": "loss", "value": "nan", "epoch": 3, "step": 8}]


def test_a_regex_that_takes_nan_says_where_too() -> None:
    [event] = [event for event in feed_both(MetricExtractor([LOSS]), "step 3 loss: nan") if event.kind == "metric"]
    assert math.isnan(event.data["value"]) and event.data["step"] == 3


def test_each_is_noticed_once() -> None:
    divergence = Divergence({})
    events = feed_both(MetricExtractor([LOSS]), "step 3 loss: nan", "step 4 loss: nan", "loss: 1")
    said = [divergence.look(event) for event in events]
    assert [text for text in said if text] == ["metric 'loss' is not a number (NaN) at step 3; rank 1 reported it."]
    assert divergence.look(metric("auc", math.nan)) is not None
    assert divergence.noticed == ["loss", "auc"]
    assert Divergence({"diverged": ["loss"]}).look(metric("loss", math.nan)) is None  # said by an earlier supervisor


# --- frames and final values ---


def test_the_frame_has_a_row_per_value() -> None:
    frame = metrics_frame(
        [
            metric("loss", 0.5, time_ns=3_000_000_000),
            Event(kind="phase", host="algo-1"),
            metric("acc", 0.9, rank=None, time_ns=4_500_000_000, attempt=1),
        ],
        start=2.0,
    )
    assert tuple(frame.columns) == COLUMNS
    assert frame["elapsed_s"].tolist() == [1.0, 2.5]
    assert frame["value"].tolist() == [0.5, 0.9]
    assert frame["attempt"].tolist() == [0, 1]
    assert frame["rank"].isna().tolist() == [False, True]
    assert str(frame["time"].dt.tz) == "UTC"
    assert frame["time"].dt.second.tolist() == [3, 4]


def test_a_frame_without_metrics_has_its_columns() -> None:
    frame = metrics_frame([])
    assert tuple(frame.columns) == COLUMNS and len(frame) == 0
    assert frame["value"].dtype == "float64"


def test_final_values_are_the_chiefs_last_of_the_last_attempt() -> None:
    events = [
        metric("loss", 1.0, rank=1, time_ns=1),
        metric("loss", 2.0, rank=0, time_ns=2),
        metric("loss", 3.0, rank=1, time_ns=3),
        metric("loss", 4.0, rank=0, time_ns=4),
        metric("acc", 0.5, rank=None, time_ns=5),
        metric("acc", 0.6, rank=None, time_ns=6),
        metric("f1", 9.0, rank=0, time_ns=7),
        metric("f1", 8.0, rank=2, time_ns=8, attempt=1),
    ]
    last = FinalMetrics()
    for event in events:
        last.add(event)
    final = last.to_list()
    assert {item["MetricName"]: item["Value"] for item in final} == {"loss": 4.0, "acc": 0.6, "f1": 8.0}
    assert final[0]["Timestamp"] == 4e-9


def test_events_that_are_no_metrics_do_no_harm() -> None:
    final = FinalMetrics()
    final.add(Event(kind="metric", host="a", data={"name": 1, "value": "x"}))
    final.add(Event(kind="phase", host="a"))
    assert final.to_list() == []
    assert len(metrics_frame([Event(kind="metric", host="a")])) == 0


# --- the number that was meant ---


@pytest.mark.parametrize(
    ("regex", "line", "value"),
    [
        (r"loss: ([0-9.]+)", "loss: 7.5e-05", 7.5e-05),
        (r"loss: ([0-9.]+)", "loss: 7.5E+3 - acc: 1", 7500.0),
        (r"loss: ([0-9.]+)", "loss: 1,234.5 and more", 1234.5),
        (r"loss: ([0-9.,]+)", "loss: 1,234,567.5,", 1234567.5),
        (r"acc: ([0-9.]+)", "It ended with acc: 0.95.", 0.95),
        (r"acc: (\d+)", "acc: 3.5s", 3.5),
        (r"acc: (.*)", "acc: 95.5% ", 95.5),
        (r"'loss': (.*?),", "{'loss': '0.69', 'grad_norm': '1'}", 0.69),
        (r"loss: (\S+)", "loss: -1e-3", -0.001),
        # What is no number's beginning, or is meant so, stays.
        (r"acc: (\d+)\.\d+", "acc: 3.5", 3.0),
        (r"(\d+),", "1,234,567", 1.0),
        (r"host (\d+)", "host 192.168.0.1", 192.0),
        (r"on (\d+)", "on 2026-11-25", 2026.0),
        (r"acc: 0\.(\d\d)", "acc: 0.75", 75.0),
        (r"loss: -?([0-9.]+)", "loss: -0.3", 0.3),
        (r"step.(\d+)", "step-17", 17.0),
        (r"a: .*(\d)", "a: x - 5", 5.0),
    ],
)
def test_the_number_in_the_line_counts_where_a_regex_cuts_it(regex: str, line: str, value: float) -> None:
    events = feed(MetricExtractor([MetricPattern("m", regex)]), f"{line}\n".encode())
    assert [event.kind for event in events] == ["metric"] and values(events) == [value]


@pytest.mark.parametrize(
    ("regex", "line", "value", "whole"),
    [
        (r"loss.*?([0-9.]+)", "loss: -0.3", 0.3, "-0.3"),
        (r"([0-9.]+) loss", "-0.3 loss", 0.3, "-0.3"),
        (r"loss.+([0-9.]+)", "loss: 0.75", 5.0, "0.75"),
        (r"loss\D+([0-9.]+)", "loss (\u22120.3)", 0.3, "\u22120.3"),
    ],
)
def test_a_regex_that_catches_the_end_of_a_number_is_told_of_once(
    regex: str, line: str, value: float, whole: str
) -> None:
    events = feed(MetricExtractor([MetricPattern("m", regex)]), *[f"{line}\n".encode()] * 2)
    assert [event.kind for event in events] == ["metric", "warning", "metric"] and values(events) == [value] * 2
    text = events[1].data["message"]
    assert f"a part of {whole!r}: use the group " in text
    better = re.compile(text.partition(f"{whole!r}: use the group ")[2].removesuffix("."))
    found = better.search(line.replace("\u2212", "-"))
    assert found is not None and found[1] == whole.replace("\u2212", "-")


@pytest.mark.parametrize("text", ["1.2.3", "12:30", "abc", "", "1e", "--3", "0x1F", "0,5", "1,2", "0,500"])
def test_what_is_no_number_is_none(text: str) -> None:
    assert number_of(Caught(text)) is None and cut_number(Caught(text), "(.*)") is None


def test_a_metric_that_no_line_has_is_told_of_with_the_line_that_was_meant() -> None:
    regexes = {"loss": "'loss': ([0-9.]+)", "train:accuracy": r"(\d+)%", "there": "there: (.*)", "no": r"no\w+ (x)"}
    extractor = MetricExtractor([MetricPattern(*item) for item in (*regexes.items(), ("own", "(y)"))])
    feed(extractor, b"there: 1\n", b"{'loss': '0.69'}\n", b"loss again\n", b"the accuracy is 0.5\n")
    assert extractor.unmatched({"there", "own"}) == [
        "metric 'loss': the regex \"'loss': ([0-9.]+)\" matched no line of the output; the first line with 'loss' is "
        "\"{'loss': '0.69'}\".",
        "metric 'train:accuracy': the regex '(\\\\d+)%' matched no line of the output; the first line with 'accuracy' "
        "is 'the accuracy is 0.5'.",
        "metric 'no': the regex 'no\\\\w+ (x)' matched no line of the output.",
    ]
