"""Ranges: what is refused, how they are written, and what is chosen in them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.job.errors import ConfigurationError
from estimators.tuning import ranges, search
from estimators.tuning.config import TuningSpec
from estimators.tuning.ranges import CategoricalParameter, ContinuousParameter, IntegerParameter


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ContinuousParameter(1.0, 0.1), "empty range"),
        (lambda: IntegerParameter(3, 2), "empty range"),
        (lambda: CategoricalParameter([]), "empty range"),
        (lambda: CategoricalParameter(["a", "a"]), "twice"),
        (lambda: ContinuousParameter(0, 1, "Logarithmic"), "above 0"),
        (lambda: ContinuousParameter(0.5, 1.5, "ReverseLogarithmic"), "0 ≤ x < 1"),
        (lambda: IntegerParameter(1, 5, "ReverseLogarithmic"), "continuous"),
        (lambda: IntegerParameter(1, 2.5), "whole numbers"),
        (lambda: ContinuousParameter(float("nan"), 1), "finite"),
        (lambda: ContinuousParameter(1, 10**400), "finite"),
        (lambda: ContinuousParameter(True, 2), "finite"),
        (lambda: ContinuousParameter("1", 2), "finite"),
        (lambda: ContinuousParameter(1, 2, "Log"), "Logarithmic"),
    ],
)
def test_what_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_the_request_and_back() -> None:
    given = {
        "learning-rate": ContinuousParameter(1e-4, 1e-1, "Logarithmic"),
        "layers": IntegerParameter(1, 8),
        "optimizer": CategoricalParameter(["sgd", "adam"]),
        "batch": CategoricalParameter([32, 64]),
        "units": CategoricalParameter([[64, 32], {"first": 64}, None, "nan", "1.10"]),
    }
    request = ranges.to_request(given, plain=False)
    assert [item["Values"] for item in request["CategoricalParameterRanges"][:2]] == [['"sgd"', '"adam"'], ["32", "64"]]
    assert ranges.from_request(request) == given
    request = ranges.to_request({"o": CategoricalParameter(["sgd", "1.10", True])}, plain=True)
    assert request["CategoricalParameterRanges"] == [{"Name": "o", "Values": ["sgd", "1.10", "True"]}]
    assert ranges.to_request(ranges.from_request(request, plain=True), plain=True) == request


def test_a_name_of_the_platform_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="belongs to the platform"):
        ranges.to_request({"sagemaker_program": CategoricalParameter(["x"])}, plain=False)
    with pytest.raises(ConfigurationError, match="must be a ContinuousParameter"):
        ranges.to_request({"x": (1, 2)}, plain=False)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("log:1e-4:1e-1", ContinuousParameter(1e-4, 1e-1, "Logarithmic")),
        ("0.1:0.9", ContinuousParameter(0.1, 0.9)),
        ("1:8", IntegerParameter(1, 8)),
        ("log:1:1024", IntegerParameter(1, 1024, "Logarithmic")),
        ("reverse:0.9:0.999", ContinuousParameter(0.9, 0.999, "ReverseLogarithmic")),
        ("-1:1.5", ContinuousParameter(-1.0, 1.5)),
        ("sgd,adam", CategoricalParameter(["sgd", "adam"])),
        ("16,32", CategoricalParameter([16, 32])),
        ("relu", CategoricalParameter(["relu"])),
    ],
)
def test_ranges_of_the_command_line(text: str, found: object) -> None:
    assert ranges.parse(text) == found


@pytest.mark.parametrize("text", ["", "log:1", "1:2:3", "log:a:b", "square:1:2", "2:1"])
def test_what_is_no_range_of_the_command_line(text: str) -> None:
    with pytest.raises(ConfigurationError):
        ranges.parse(text)


def spec(given: dict[str, Any], **more: Any) -> TuningSpec:
    return TuningSpec(
        name="study", objective="score", parameter_ranges=ranges.to_request(given, plain=False), max_jobs=20, **more
    )


def test_what_is_chosen_lies_in_the_ranges_and_is_chosen_again_the_same(tmp_path: Path) -> None:
    given = {
        "lr": ContinuousParameter(1e-4, 1e-1),
        "momentum": ContinuousParameter(0.9, 0.999, "ReverseLogarithmic"),
        "layers": IntegerParameter(1, 8),
        "optimizer": CategoricalParameter(["sgd", "adam"]),
    }
    asked = spec(given, strategy="Random", random_seed=1)
    study = search.open_study(tmp_path / "journal", asked)
    chosen = []
    for number in range(20):
        trial = study.ask()
        values = search.suggest(trial, asked.parameter_ranges)
        assert values == search.suggest(trial, asked.parameter_ranges)
        decoded = {name: json.loads(text) for name, text in values.items()}
        assert all(given[name].is_valid(value) for name, value in decoded.items())
        parameters = search.as_parameters(values, asked.parameter_ranges)
        assert parameters is not None
        other = search.optuna.create_study()
        other.enqueue_trial(parameters)
        assert search.suggest(other.ask(), asked.parameter_ranges)
        chosen.append(decoded)
        study.tell(trial, float(number))
    # On a logarithmic scale half of them are below the geometric mean.
    assert 4 <= sum(math.log10(one["lr"]) < -2.5 for one in chosen) <= 16
    assert 4 <= sum(one["momentum"] > 0.99 for one in chosen) <= 16


def test_a_study_that_goes_on_has_its_trials_and_draws_new_numbers(tmp_path: Path) -> None:
    asked = spec({"x": ContinuousParameter(0.0, 1.0)}, strategy="Random", random_seed=7)
    journal = tmp_path / "journal"
    study = search.open_study(journal, asked)
    trial = study.ask()
    first = search.suggest(trial, asked.parameter_ranges)
    study.tell(trial, 1.0)
    left = study.ask()
    search.suggest(left, asked.parameter_ranges)
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"worker')  # SIGKILL in the midst of a line
    again = search.open_study(journal, asked)
    assert [one.state.name for one in again.trials] == ["COMPLETE", "RUNNING"]
    third = again.ask()
    assert search.suggest(third, asked.parameter_ranges) != first
    again.tell(third, 2.0)
    assert len(search.open_study(journal, asked).trials) == 3


def test_a_grid_takes_each_point_once(tmp_path: Path) -> None:
    asked = spec({"a": IntegerParameter(1, 2), "b": CategoricalParameter(["x", "y"])}, strategy="Grid")
    study = search.open_study(tmp_path / "journal", asked)
    found = []
    for number in range(asked.limit):
        if number == 2:
            study = search.open_study(tmp_path / "journal", asked)
        search.enqueue_grid_point(study, asked)
        trial = study.ask()
        found.append(tuple(search.suggest(trial, asked.parameter_ranges).values()))
        study.tell(trial, float(number))
    assert sorted(found) == [("1", '"x"'), ("1", '"y"'), ("2", '"x"'), ("2", '"y"')]


def test_importance_finds_what_matters() -> None:
    asked = spec({"x": ContinuousParameter(0.0, 1.0), "y": ContinuousParameter(0.0, 1.0)})
    rows = [
        {"state": "Completed", "value": x / 10, "values": {"x": str(x / 10), "y": str((x * 7 % 10) / 10)}}
        for x in range(10)
    ]
    found = search.importances(asked, rows)
    assert found["x"] > found["y"]
    assert search.importances(asked, rows[:2]) == {}
