"""Runs side by side: groups, marks, tables, plots and the report, from results that were never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import (
    BackendError,
    ConfigurationError,
    FakeOutcome,
    TensorFlow,
    compare,
)
from estimators.records.record import job_names

# --- running estimators, on the fake backend ---


def fake(outcome: FakeOutcome, **arguments: Any) -> TensorFlow:
    return TensorFlow(
        entry_point="train.py",
        source_dir=arguments.pop("source_dir"),
        instance_type="local_fake",
        run_options=outcome.run_options(),
        **arguments,
    )


def test_estimators_run_in_turns_and_failures_do_not_stop_the_others(tmp_path: Path, home: Path) -> None:
    (tmp_path / "train.py").write_text("")
    code = str(tmp_path)
    comparison = compare(
        {
            "good": fake(FakeOutcome(metrics={"loss": [0.5, 0.25]}), source_dir=code, base_job_name="good"),
            "bad": fake(FakeOutcome(lines=["out of memory"], exit_code=1), source_dir=code, base_job_name="bad"),
        },
        repeat=2,
    )
    assert [len(group.results) for group in comparison.groups] == [2, 2]
    order = sorted(comparison.results, key=lambda one: one.created or 0)
    assert [one.job_name[:3] for one in order] == ["goo", "bad", "bad", "goo"]
    assert len(comparison["good"].completed) == 2 and len(comparison["bad"].failed) == 2
    assert comparison.table().loc["good", "loss"] == 0.25
    assert "exited with code 1" in str(comparison)


def test_an_attached_estimator_stands_for_its_job(tmp_path: Path, home: Path) -> None:
    (tmp_path / "train.py").write_text("")
    job = fake(FakeOutcome(metrics={"loss": [0.25]}), source_dir=str(tmp_path)).fit(logs=False)
    attached = TensorFlow.attach(job.name)
    assert attached.result().metrics["loss"] == 0.25
    comparison = compare({"a": attached})
    assert [one.job_name for one in comparison.results] == [job.name]
    assert job_names() == [job.name]
    for wrong in ({"inputs": str(tmp_path)}, {"repeat": 3}):
        with pytest.raises(ConfigurationError, match="is for estimators"):
            compare(attached, **wrong)
    # With another argument it is an estimator like others.
    attached.set_hyperparameters(epochs=2)
    comparison = compare(attached)
    assert len(job_names()) == 2 and comparison.results[0].job_name != job.name
    with pytest.raises(ConfigurationError, match="no training job yet"):
        fake(FakeOutcome(), source_dir=str(tmp_path)).result()


def test_a_run_that_cannot_be_started_is_kept_with_its_cause(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    good, other = (fake(FakeOutcome(), source_dir=str(tmp_path)) for _ in range(2))

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise BackendError("the engine does not answer")

    monkeypatch.setattr(other, "fit", refuse)
    comparison = compare({"good": good, "other": other})
    assert comparison["good"].completed and "the engine does not answer" in str(comparison)
