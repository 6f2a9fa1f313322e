"""Trackers with their real libraries: runs, resumed runs, and trackers that are down."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from container.formats import tfrecord
from estimators import BackendError, TensorFlow, TrainingJobError
from estimators.callbacks import MLflowCallback, TensorBoardCallback, WandbCallback
from estimators.cli import main as cli

#: Fails at first, and goes on when it is resumed.
SCRIPT = """
import os, sys
first = not os.path.exists(os.environ["MARK"])
open(os.environ["MARK"], "w").close()
for value in (3, 2) if first else (1,):
    print("loss:", value, flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], "model.txt"), "w").close()
sys.exit(first and os.environ.get("FAIL") == "yes")
"""


@pytest.fixture
def estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TensorFlow:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return TensorFlow(
        entry_point="train.py",
        model_dir=False,
        hyperparameters={"rate": 0.1, "api-key": "s3cret"},
        metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        environment={"MARK": str(tmp_path / "mark")},
    )


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def runs_of(uri: str) -> list[dict]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("fleetfit")
    return [
        {
            "status": run.info.status,
            "parameters": run.data.params,
            "tags": run.data.tags,
            "losses": [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")],
            "files": [file.path for file in client.list_artifacts(run.info.run_id, "model")],
        }
        for run in client.search_runs([experiment.experiment_id])
    ]


def records_of(content: bytes) -> Iterator[bytes]:
    """Read the log's records: LevelDB's format, behind a header."""
    place, block, whole = 7, 1 << 15, b""
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_a_resumed_job_goes_on_in_its_run_of_mlflow(estimator: TensorFlow, tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    estimator.environment = {**estimator.environment, "FAIL": "yes"}
    with pytest.raises(TrainingJobError):
        estimator.fit(logs=False, callbacks=[MLflowCallback(uri)])
    [run] = runs_of(uri)
    assert (run["status"], run["losses"]) == ("FAILED", [(0, 3.0), (1, 2.0)])
    assert run["parameters"] == {"rate": "0.1", "api-key": "***"}
    assert run["tags"]["fleetfit.strategy"] == "none"
    estimator.latest_training_job.resume(logs=False, callbacks=[MLflowCallback(uri)])
    [run] = runs_of(uri)
    assert (run["status"], run["losses"]) == ("FINISHED", [(0, 3.0), (1, 2.0), (2, 1.0)])
    assert run["files"] == ["model/model.tar.gz"]


def test_a_tracking_server_that_is_down_harms_no_job_and_is_told_later(
    estimator: TensorFlow, tmp_path: Path, port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = f"http://127.0.0.1:{port}"
    tracker = MLflowCallback(uri, patience=0.5)
    estimator.fit(logs=False, callbacks=[tracker])
    job = estimator.latest_training_job
    assert str(job.status) == "Completed"
    assert f"To send the rest, run `fleetfit track mlflow {job.name}`" in capfd.readouterr().err
    with pytest.raises(BackendError, match="MLflow: "):
        tracker.sync(job)


@pytest.mark.timeout(300)
def test_a_tracking_server(estimator: TensorFlow, tmp_path: Path) -> None:
    """Is told of a job that ran without it; a second time changes nothing."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    estimator.fit(logs=False)
    command = [sys.executable, "-c", f"from mlflow.server import app; app.run(port={port})"]
    environment = {**os.environ, "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{tmp_path}/mlflow.db",
                   "_MLFLOW_SERVER_ARTIFACT_ROOT": str(tmp_path / "artifacts")}  # fmt: skip
    with open(tmp_path / "server.log", "wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path, env=environment
        )
    try:

        def answers() -> bool:
            with socket.socket() as asked:
                return server.poll() is not None or asked.connect_ex(("127.0.0.1", port)) == 0

        until(answers)
        assert server.poll() is None, (tmp_path / "server.log").read_text()
        for _ in range(2):
            assert cli.main(["track", f"mlflow={uri}", "last"]) == 0
        [run] = runs_of(uri)
        assert (run["status"], run["losses"]) == ("FINISHED", [(0, 3.0), (1, 2.0)])
        assert run["files"] == ["model/model.tar.gz"]
    finally:
        server.terminate()
        server.wait()


def test_tensorboard(estimator: TensorFlow, tmp_path: Path) -> None:
    """What is written has TensorBoard's form: its checksums, and its messages."""
    from tensorboard.compat.proto.event_pb2 import Event

    estimator.fit(logs=False, callbacks=[TensorBoardCallback(tmp_path / "runs")])
    [file] = (tmp_path / "runs" / estimator.latest_training_job.name).iterdir()
    events = [Event.FromString(record) for record in tfrecord.read(file)]
    assert events[0].file_version == "brain.Event:2"
    values = [(event.step, value) for event in events for value in event.summary.value]
    assert [(step, value.simple_value) for step, value in values if value.tag == "loss"] == [(0, 3.0), (1, 2.0)]
    [text] = [value.tensor.string_val[0].decode() for _, value in values if value.tag == "hyperparameters"]
    assert "| rate | 0.1 |" in text and "s3cret" not in text


@pytest.mark.timeout(300)
@pytest.mark.leaves("files")
def test_wandb_offline(estimator: TensorFlow, tmp_path: Path) -> None:
    import wandb
    from wandb.proto import wandb_internal_pb2

    estimator.fit(logs=False, callbacks=[WandbCallback(folder=str(tmp_path))])
    wandb.teardown()  # its own process writes the file's rest when the run has been told that it is over
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    losses, exits = [], []
    for data in records_of(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            losses += [item.value_json for item in record.history.item if "loss" in (item.key, *item.nested_key)]
        if record.HasField("exit"):
            exits.append(record.exit.exit_code)
    assert (losses, exits) == (["3", "2"], [0])
