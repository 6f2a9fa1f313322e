"""What the benchmarks of elastic training make of their rounds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks import elastic, elastic_steps


def rows(found: list[elastic.Row]) -> dict[str, tuple[float, str | None]]:
    """What -> median and verdict."""
    return {
        row.what: (row.estimate.value, row.bar.verdict(row.estimate) if row.bar is not None else None) for row in found
    }


def test_changes_are_held_against_their_bars() -> None:
    changes = {"join": 4.0, "leave": 0.4, "kill": 1.5}
    rounds = {
        "fit()": [changes] * 3,
        "fit(), with a spare": [{"join": 1.0}] * 3,
        "horovodrun": [{"join": 5.0, "leave": 2.0, "kill": 1.0}] * 3,
        "gang, fit()": [{"restart": 6.0, "restart without import": 1.9}] * 3,
        "gang, horovodrun": [{"restart": 8.0, "restart without import": 4.0}] * 3,
    }
    found = rows(elastic.rows_of(rounds))
    assert len(found) == 12
    assert found["SIGKILL of a worker to the next step of the others: fit()"] == (1.5, "missed")
    assert found["a host leaves: request to the first step without it: fit()"] == (0.4, "met")
    assert found["a host leaves: request to the first step without it: horovodrun"] == (2.0, None)
    assert found["a host joins: request to the first step with it: fit(), with a spare"] == (1.0, "met")
    assert found["the same, less the import of TensorFlow: fit()"] == (1.9, "met")
    assert found["a host joins: fit() ÷ horovodrun"] == (pytest.approx(0.8), "met")


def test_an_undisturbed_training_is_held_against_a_static_one() -> None:
    def numbers(rate: float, share: float = 0.0) -> dict[str, float]:
        return {"steps_per_second": rate, "median_step_s": 1 / rate, "commit_share": share, "commits": 3}

    rounds = {elastic_steps._ELASTIC: [numbers(99, 0.02)] * 3, elastic_steps._STATIC: [numbers(100)] * 3}
    found = rows(elastic_steps.steady_rows(rounds))
    assert found["undisturbed, steps/s: elastic ÷ static"] == (pytest.approx(0.99), "met")
    assert found["commits at the automatic interval, share of the time"] == (pytest.approx(2.0), "missed")


def test_intervals_of_commits_have_their_speed_and_what_is_lost() -> None:
    numbers = {"steps_per_second": 50.0, "commit_share": 0.1, "median_step_s": 0.02}
    found = elastic_steps.commit_rows({"every 10": [numbers] * 3}, {"every 10": [2, 7, 9]})
    assert [(row.what, row.estimate.value, row.unit) for row in found] == [
        ("commit every 10: speed", 50.0, "steps/s"),
        ("commit every 10: lost at a kill", 7.0, "steps"),
    ]
    assert found[0].beside == {"share of the time, %": 10.0} and found[1].beside == pytest.approx({"seconds": 0.14})


class Steps(elastic.Run):
    """A training that has written what it has."""

    def training(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def check(self) -> None:
        raise RuntimeError("it has ended")


def test_the_first_step_at_a_size_is_found_and_an_end_is_noticed(tmp_path: Path) -> None:
    run = Steps(tmp_path)
    (tmp_path / "steps-a").write_text("100 2 0 11 1\n200 3 0 11 2\n300 3 0 11 3\n40")  # the last line is being written
    (tmp_path / "steps-b").write_text("250 3 1 12 1\n")
    assert run.after(3, 150, 2) == 200
    assert run.after(3, 200) == 300
    with pytest.raises(RuntimeError, match="it has ended"):
        run.after(1, 0)
    now = time.time()
    for number, seconds in enumerate((9.0, 3.0, 4.0)):
        (tmp_path / f"import-{number}").write_text(str(seconds))
        os.utime(tmp_path / f"import-{number}", (now, now + number))
    assert run.importing() == 4.0  # of the two that were started last
