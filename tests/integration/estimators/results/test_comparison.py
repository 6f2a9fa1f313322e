"""Runs side by side, on the fake backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators import BackendError, TensorFlow, compare
from estimators.testing import FakeOutcome


@pytest.fixture
def fake(tmp_path: Path, home: Path) -> Callable[..., TensorFlow]:
    """Make an estimator whose job runs on the fake backend."""
    (tmp_path / "train.py").write_text("")
    return lambda name, **outcome: TensorFlow(
        entry_point="train.py", source_dir=str(tmp_path), instance_type="local_fake", base_job_name=name,
        run_options=FakeOutcome(**outcome).run_options(),
    )  # fmt: skip


def test_estimators_run_in_turns_and_failures_do_not_stop_the_others(
    fake: Callable[..., TensorFlow], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise BackendError("the engine does not answer")

    good, bad = fake("good", metrics={"loss": [0.5, 0.25]}), fake("bad", lines=["out of memory"], exit_code=1)
    refused = fake("refused")
    monkeypatch.setattr(refused, "fit", refuse)
    comparison = compare({"good": good, "bad": bad, "refused": refused}, repeat=2)
    assert [len(group.results) for group in comparison.groups] == [2, 2, 2]
    order = sorted((one for one in comparison.results if one.created), key=lambda one: one.created or 0)
    assert [one.job_name[:3] for one in order] == ["goo", "bad", "bad", "goo"]
    assert len(comparison["good"].completed) == 2 and len(comparison["bad"].failed) == 2
    assert comparison.table().loc["good", "loss"] == 0.25
    assert "exited with code 1" in str(comparison), "why one failed"
    assert "the engine does not answer" in str(comparison), "why one could not be started"


def test_a_job_that_is_named_twice_is_one_run(fake: Callable[..., TensorFlow]) -> None:
    job = fake("one", metrics={"loss": [0.5]}).fit(logs=False)
    assert [len(group.results) for group in compare(job, job.name, job.result()).groups] == [1]
    assert [len(group.results) for group in compare({"a": job, "b": job.name}).groups] == [1, 1]


def test_an_interrupt_shows_the_runs_that_have_ended(
    fake: Callable[..., TensorFlow], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    second = fake("second")
    monkeypatch.setattr(second, "fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare({"first": fake("first", metrics={"loss": [0.25]}), "second": second})
    shown = capsys.readouterr().err
    table = shown[shown.index("compare: interrupted. The runs that have ended:") :]
    assert "first" in table and "0.25" in table and "second" not in table
