"""What a notebook shows while a job runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import recorded

from estimators import TensorFlow
from estimators.client.notebook import Pane
from estimators.client.progress import JobProgress
from estimators.client.training_job import TrainingJob


class Display:
    """IPython's ``display``, and what it gives."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def __call__(self, page: str, *, display_id: bool) -> Display:
        self.update(page)
        return self

    def update(self, page: str) -> None:
        self.pages.append(page)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingJob:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("")
    return recorded(TensorFlow(entry_point=str(tmp_path / "train.py"), instance_type="local_fake"))


def test_a_line_without_an_end_does_not_grow_the_pane(job: TrainingJob) -> None:
    display = Display()
    pane = Pane(job, JobProgress({}, 0.0), display, str)
    for _ in range(100):
        pane.write("x" * 10_000)
    pane.refresh()
    assert len(display.pages[-1]) < 5_000
    pane.write("\n<b>next</b>")
    pane.finish()
    assert "logs (2 lines)" in display.pages[-1]
    assert "&lt;b&gt;next&lt;/b&gt;" in display.pages[-1]
