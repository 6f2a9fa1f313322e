"""The table of a job's end."""

from __future__ import annotations

import dataclasses

import pytest

from estimators.display import job_html, job_table, number_text, seconds_text
from estimators.result import Result

RESULT = Result(
    job_name="digits-1",
    status="Completed",
    secondary_status="Completed",
    seconds=17.4,
    phases={"launch": 0.21, "import": None, "training": 12.3, "first_step": 1.0},
    metrics={"val_accuracy": 0.974321987, "samples/s": 5321.0},
    model_data="/out/model.tar.gz",
    checkpoints=None,
    logs="/home/jobs/digits-1/hosts",
)


def test_the_table() -> None:
    rule = "─" * 54
    assert job_table(RESULT) == (
        f"{rule}\n"
        "digits-1  Completed\n"
        "  phases   launch 0.21 s · training 12.3 s · first step 1.00 s\n"
        "  total    17.4 s\n"
        "  metrics  val_accuracy 0.974322 · samples/s 5321\n"
        "  model    /out/model.tar.gz\n"
        "  logs     /home/jobs/digits-1/hosts\n"
        f"{rule}\n"
    ).replace(rule, "─" * max(map(len, job_table(RESULT).splitlines())))


def test_a_narrow_terminal_wraps_but_does_not_cut_paths() -> None:
    table = job_table(dataclasses.replace(RESULT, model_data="/" + "x" * 200), columns=40)
    assert "/" + "x" * 200 in table
    assert all(len(line) <= 40 for line in table.splitlines() if "x" * 200 not in line)


def test_many_metrics_are_counted() -> None:
    table = job_table(dataclasses.replace(RESULT, metrics={f"m{number}": 1.5 for number in range(100)}), columns=400)
    assert "and 88 more" in table


def test_html_is_escaped_and_says_why() -> None:
    failed = dataclasses.replace(
        RESULT, job_name="<b>", status="Stopped", secondary_status="MaxRuntimeExceeded", failure_reason="a < b"
    )
    page = job_html(failed)
    assert "&lt;b&gt;" in page and "<b><b>" not in page
    assert "a &lt; b" in page and "Stopped (MaxRuntimeExceeded)" in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.00 s"), (9.999, "10.0 s"), (99.99, "1 min 40 s"), (245, "4 min 05 s"), (7384, "2 h 03 min")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.1234567, "0.123457"),
        (1e-9, "1e-09"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1e20, "1e+20"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text
