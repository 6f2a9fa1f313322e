"""The table of a job's end."""

from __future__ import annotations

import dataclasses

import pytest

from container.contract.durations import Durations
from estimators import MPI, TensorFlow
from estimators.results.display import job_html, job_table
from estimators.results.result import Result
from estimators.results.summary import number_text, seconds_text

RESULT = Result(
    job_name="digits-1",
    status="Completed",
    secondary_status="Completed",
    seconds=17.4,
    phases={"launch": 0.21, "import": None, "training": 12.3, "first_step": 1.0},
    final_metrics={"val_accuracy": 0.974321987, "samples/s": 5321.0},
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
        "  metrics  val_accuracy 0.9743 · samples/s 5,321\n"
        "  model    /out/model.tar.gz\n"
        "  logs     /home/jobs/digits-1/hosts\n"
        f"{rule}\n"
    ).replace(rule, "─" * max(map(len, job_table(RESULT).splitlines())))


def test_one_name_has_one_meaning() -> None:
    # The metric is the last epoch's, the result's number is the whole training's.
    result = dataclasses.replace(
        RESULT, final_metrics={"loss": 0.5, "samples_per_second": 90.0}, samples_per_second=100.0, steps_per_second=2.0
    )
    table = job_table(result)
    assert "  speed    2 steps/s · 100 samples/s\n" in table
    assert "samples_per_second" not in table and "90" not in table
    assert result.to_first_step_s == pytest.approx(1.21)


def test_a_narrow_terminal_wraps_but_does_not_cut_paths() -> None:
    table = job_table(dataclasses.replace(RESULT, model_data="/" + "x" * 200), columns=40)
    assert "/" + "x" * 200 in table
    assert all(len(line) <= 40 for line in table.splitlines() if "x" * 200 not in line)


def test_many_metrics_are_counted() -> None:
    table = job_table(
        dataclasses.replace(RESULT, final_metrics={f"m{number}": 1.5 for number in range(100)}), columns=400
    )
    assert "and 88 more" in table


def test_html_has_nothing_that_a_terminal_obeys() -> None:
    text = "ValueError: \x1b]52;c;ZXZpbA==\x07boom\x9b2J"
    page = job_html(dataclasses.replace(RESULT, status="Failed", failure_reason=text))
    assert "ValueError: boom" in page
    assert not [character for character in page if character in "\x07\x1b\x9b"]


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
        (0.1234567, "0.1235"),
        (7758.2, "7,758"),
        (17100.0, "17,100"),
        (1e-9, "1e-09"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1e20, "1e+20"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


def test_warnings_are_wrapped() -> None:
    warned = dataclasses.replace(
        RESULT, warnings=("the job was not distributed: " + "none joined " * 12, "loss is NaN")
    )
    lines = job_table(warned, columns=60).splitlines()
    [first] = [index for index, line in enumerate(lines) if line.startswith("  warnings  the job was not distributed")]
    [last] = [index for index, line in enumerate(lines) if line.strip() == "loss is NaN"]
    assert last > first + 1 and all(len(line) <= 60 and line.startswith("  ") for line in lines[first : last + 1])
    assert "the job was not distributed" in job_html(warned)
    assert Result.from_dict(warned.to_dict()).warnings == warned.warnings


def test_an_estimator_in_a_notebook_is_what_it_was_told() -> None:
    estimator = TensorFlow(
        entry_point="<train>.py", instance_count=2, distribution=MPI(), hyperparameters={"lr": 0.1, "api-key": "hidden"}
    )
    page = estimator._repr_html_()
    assert "&lt;train&gt;.py" in page
    assert "MPI()" in page
    assert "lr: 0.1" in page
    assert "hidden" not in page
    assert "max_run" not in page  # a default


def test_durations_say_what_they_are() -> None:
    times = Durations()
    assert repr(times) == "Durations(none)"
    times.add(0.02, 50)
    assert repr(times).startswith("Durations(50, median 20")
