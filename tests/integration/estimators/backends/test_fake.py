"""The fake backend: real records, statuses, logs and handles of a cluster that never was."""

from __future__ import annotations

import tarfile
import time
from typing import Any

import pytest

from container.contract.failures import Cause, Failure
from estimators import MPI, TensorFlow, TrainingJobError
from estimators.testing import FakeOutcome

pytestmark = pytest.mark.usefixtures("home")


def estimator(outcome: FakeOutcome | None = None, **arguments: Any) -> TensorFlow:
    options = {} if outcome is None else {"run_options": outcome.run_options()}
    return TensorFlow(instance_type="local_fake", **options, **arguments)


def test_a_job_completes(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = FakeOutcome(
        seconds=0.1,
        lines=["hello\nworld", (3, "loss: 0.5")],
        metrics={"accuracy": [0.5, 0.9]},
        model={"1/saved_model.pb": "model"},
    )
    job = estimator(
        outcome,
        instance_count=2,
        distribution=MPI(processes_per_host=2),
        metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
    ).fit()
    assert job.status == "Completed"
    out = capsys.readouterr().out
    assert "[algo-1:rank 0] hello\n[algo-1:rank 0] world\n" in out
    assert "[algo-2:rank 3] loss: 0.5" in out
    frame = job.metrics()
    assert sorted(zip(frame["name"], frame["rank"], frame["value"], strict=True)) == [
        ("accuracy", 0, 0.5),
        ("accuracy", 0, 0.9),
        ("loss", 3, 0.5),
    ]
    with tarfile.open(job.model_data) as archive:
        assert archive.getnames() == ["1/saved_model.pb"]


def test_a_job_fails_or_is_stopped_as_it_is_told() -> None:
    with pytest.raises(TrainingJobError) as caught:
        estimator(FakeOutcome(exit_code=3, lines=["oh"])).fit(logs=False)
    assert (caught.value.host, caught.value.rank, caught.value.exit_code) == ("algo-1", 0, 3)
    failure = Failure(
        cause=Cause.PROCESS,
        message="raised ValueError: no",
        process="rank 1",
        rank=1,
        traceback="Traceback\nValueError: no",
    )
    with pytest.raises(TrainingJobError) as caught:
        estimator(FakeOutcome(failure=failure)).fit(logs=False)
    assert str(caught.value).endswith("Traceback\nValueError: no")
    assert caught.value.rank == 1

    started = time.monotonic()
    job = estimator(FakeOutcome(seconds=60, lines=["x"])).fit(wait=False)
    job.stop(wait=True)
    assert job.status == "Stopped"
    assert time.monotonic() - started < 10
