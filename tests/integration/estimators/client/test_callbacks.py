"""Callbacks of a waiting caller: told of metrics and events as they come, and safe when they raise."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.contract.wire import Event
from estimators import TensorFlow, TrainingJob
from estimators.callbacks import Callback, Metric

#: Goes on when its first metric has been seen.
SCRIPT = """
import os, time
print("loss: 3", flush=True)
deadline = time.monotonic() + 60
while not os.path.exists(os.environ["SEEN"]) and time.monotonic() < deadline:
    time.sleep(0.01)
print("loss: 2", flush=True)
print("loss: 1", flush=True)
"""
METRICS = [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]


class Recorder(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self.events: list[Event] = []
        self.ended: list[str] = []

    def on_metric(self, job: TrainingJob, metric: Metric) -> None:
        self.metrics.append(metric)

    def on_event(self, job: TrainingJob, event: Event) -> None:
        self.events.append(event)

    def on_end(self, job: TrainingJob) -> None:
        self.ended.append(str(job.status))


@pytest.fixture
def estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TensorFlow:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(SCRIPT)
    return TensorFlow(
        entry_point="train.py",
        source_dir=str(source),
        instance_count=1,
        instance_type="local_process",
        metric_definitions=METRICS,
        environment={"SEEN": str(tmp_path / "seen")},
    )


def test_metrics_and_events_come_while_the_job_runs(estimator: TensorFlow, tmp_path: Path) -> None:
    recorder = Recorder()
    states = []

    class Watcher(Callback):
        def on_metric(self, job: TrainingJob, metric: Metric) -> None:
            states.append(str(job.status))
            (tmp_path / "seen").touch()

    estimator.fit(logs=False, callbacks=[recorder, Watcher()])
    assert [(metric.name, metric.value, metric.rank) for metric in recorder.metrics] == [
        ("loss", 3.0, 0),
        ("loss", 2.0, 0),
        ("loss", 1.0, 0),
    ]
    assert states[0] == "InProgress"
    assert {"phase", "metric", "process_ended"} <= {event.kind for event in recorder.events}
    assert recorder.ended == ["Completed"]


def test_an_exception_of_a_callback_ends_the_job_and_a_resumed_job_tells_only_of_itself(
    estimator: TensorFlow, tmp_path: Path
) -> None:
    class Broken(Callback):
        def on_metric(self, job: TrainingJob, metric: Metric) -> None:
            raise KeyError("mine")

    other = Recorder()
    with pytest.raises(KeyError, match="mine"):
        estimator.fit(logs=False, callbacks=[Broken(), other])
    job = estimator.latest_training_job
    assert job is not None
    assert str(job.status) == "Stopped" and other.ended == ["Stopped"]
    (tmp_path / "seen").touch()
    recorder = Recorder()
    known = sum(1 for _ in job.record.events())
    job.resume(logs=False, callbacks=recorder)
    assert recorder.events == list(job.record.events())[known:]
    assert [metric.value for metric in recorder.metrics] == [3.0, 2.0, 1.0]
    assert {event.attempt for event in recorder.events if event.kind == "metric"} == {1}


@pytest.mark.parametrize("error", [ValueError, BrokenPipeError, SystemExit])
def test_an_error_in_on_end_is_raised_once_after_on_end_of_the_other_callbacks(
    estimator: TensorFlow, tmp_path: Path, error: type[BaseException]
) -> None:
    ended = []

    class Broken(Callback):
        def on_end(self, job: TrainingJob) -> None:
            ended.append(job.name)
            raise error("mine")

    (tmp_path / "seen").touch()
    other = Recorder()
    with pytest.raises(error, match="mine"):
        estimator.fit(logs=False, callbacks=[Broken(), other])
    assert len(ended) == 1 and other.ended == ["Completed"]
