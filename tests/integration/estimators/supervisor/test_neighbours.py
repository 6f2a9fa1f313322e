"""Modules of the user's own that were not sent with a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators import TensorFlow, TrainingJobError


def test_a_job_says_that_the_module_was_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPI has packages of nearly every name: to install one of them would be to run somebody else's code."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "helper.py").write_text("x = 1\n")
    (tmp_path / "code" / "train.py").write_text("import helper\n")
    monkeypatch.chdir(tmp_path)

    def run(**settings: str) -> tuple[str, ...]:
        estimator = TensorFlow(instance_count=1, instance_type="local_process", model_dir=False, **settings)
        try:
            estimator.fit(logs=False)
        except TrainingJobError as error:
            return error.hints
        return ()

    (hint,) = run(entry_point="code/train.py")
    assert hint.startswith(
        "helper.py is next to train.py, but only train.py was sent. "
        "To send the whole folder, set source_dir='code', entry"
    )
    assert "requirements" not in hint
    assert run(entry_point="train.py", source_dir="code") == ()
