"""Modules of the user's own that were not sent with a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.contract import hints
from estimators import TensorFlow, TrainingJobError
from estimators.supervisor import neighbours


@pytest.mark.parametrize(
    ("code", "there", "expected"),
    [
        (
            "/p/train.py",
            "/p/helper.py",
            "helper.py is next to train.py, but only train.py was sent. To send the whole folder, set source_dir='.'",
        ),
        ("/p/src/train.py", "/p/src/helper", "source_dir='src', entry_point='train.py' (--source-dir src)"),
        ("/q/train.py", "/q/helper.py", "source_dir='/q', entry_point='train.py' (--source-dir /q)"),
        (
            "/p/src",
            "/p/helper.py",
            "next to src/, but only src/ was sent. To send helper.py too, set dependencies=['helper.py']",
        ),
        ("/p/train.py", "/p/other.py", None),
    ],
)
def test_where_a_module_lies(code: str, there: str, expected: str | None) -> None:
    said = neighbours.hint_at(hints.install("helper.sub"), Path(code), "/p", lambda path: path == Path(there))
    assert (said is None) if expected is None else (said is not None and expected in said)


def test_other_hints_are_left_alone() -> None:
    other = "the disk is full: `fleetfit clean` frees what old jobs and caches hold."
    assert neighbours.hint_at(other, Path("/p/train.py"), "/p", lambda path: True) is None


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
