"""Runs side by side, on the fake backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import BackendError, TensorFlow, compare
from estimators.testing import FakeOutcome


def test_estimators_run_in_turns_and_failures_do_not_stop_the_others(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(name: str, **outcome: Any) -> TensorFlow:
        return TensorFlow(
            entry_point="train.py", source_dir=str(tmp_path), instance_type="local_fake", base_job_name=name,
            run_options=FakeOutcome(**outcome).run_options(),
        )  # fmt: skip

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise BackendError("the engine does not answer")

    (tmp_path / "train.py").write_text("")
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
