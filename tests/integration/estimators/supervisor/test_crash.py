"""A supervisor that fails by a fault of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import until

from estimators import TensorFlow, TrainingJobError
from estimators.testing import FakeOutcome

# Loaded by each process of the job; only its supervisor fails.
_FAULT = """
import sys

if "estimators.supervisor.main" in sys.orig_argv:
    from estimators.backends.hosts.remover import Remover
    from estimators.supervisor.supervisor import Supervisor

    def fail(self, event):
        Remover(self.loop, self.protected, "os", "machines", {{"path": {machines!r}}})
        raise RuntimeError("something new")

    Supervisor.put_nowait = fail
"""


def test_what_bills_is_removed_and_the_job_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fault'}:{Path(__file__).parents[4]}")
    machines = tmp_path / "machines"
    machines.touch()
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "sitecustomize.py").write_text(_FAULT.format(machines=str(machines)))
    estimator = TensorFlow(instance_type="local_fake", run_options=FakeOutcome(lines=["hello"]).run_options())
    with pytest.raises(TrainingJobError) as caught:
        estimator.fit(logs=False)
    assert "fleetfit's supervisor failed: RuntimeError('something new')" in str(caught.value)
    until(lambda: not machines.exists())
