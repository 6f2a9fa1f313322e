"""Jobs from end to end: real boto3, fleetfit's own SageMaker-compatible endpoint, real processes and files."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators import MPI, JobNotFoundError, RunOptions, TensorFlow, TrainingInput, TrainingJobError
from estimators.client.training_job import TrainingJob

ROOT = Path(__file__).resolve().parents[5]
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/fleetfit-training:latest"
SCRIPT = """\
import argparse, os, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--fail", type=int, default=0)
parser.add_argument("--model_dir")
given = parser.parse_args()
files = os.environ.get("SM_CHANNEL_TRAIN")
print(f"files: {sorted(os.listdir(files)) if files else []}", flush=True)
print(f"loss: {0.25}", flush=True)
time.sleep(given.seconds)
if given.fail:
    raise ValueError("on purpose")
Path(os.environ["SM_MODEL_DIR"], "weights").write_text("model")
print("ended", flush=True)
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a client of a running endpoint."""
    folder = tmp_path_factory.mktemp("endpoint")
    file = folder / "endpoint.env"
    options = ["--port", "0", "--s3-port", "0", "--no-profile", "--env-file", str(file), "--max-jobs", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"FLEETFIT_HOME": str(folder / "home"), "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-m", "estimators.cli.main", "serve", *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("w"),
    )
    try:
        deadline = time.monotonic() + 60
        while not file.exists():
            assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


@pytest.fixture(autouse=True)
def client(endpoint: dict[str, str], environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in endpoint.items():
        monkeypatch.setenv(name, value)
    (environment / "code").mkdir()
    (environment / "code" / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(environment)
    return environment


def estimator(**arguments: Any) -> TensorFlow:
    return TensorFlow(
        **{
            "entry_point": "train.py",
            "source_dir": "code",
            "instance_type": "ml.m5.xlarge",
            "image_uri": IMAGE,
            "role": "arn:aws:iam::000000000000:role/train",
            "metric_definitions": [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
            "run_options": RunOptions(backend_options={"poll_seconds": 0.2}),
            **arguments,
        }
    )


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.05)


def test_a_cluster_trains_as_everywhere_else(
    client: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import boto3

    s3 = boto3.client("s3")
    bucket = os.environ["FLEETFIT_DEFAULT_BUCKET"]
    for name in ("data/a", "data/b"):
        s3.put_object(Bucket=bucket, Key=name, Body=b"1")
    data = TrainingInput(f"s3://{bucket}/data/", distribution="ShardedByS3Key")
    job = estimator(instance_count=2, distribution=MPI(), base_job_name="mine").fit({"train": data})
    assert job.status == "Completed"
    out = capfd.readouterr().out
    assert "[algo-1:rank 0] files: ['a']" in out and "[algo-2:rank 1] files: ['b']" in out
    assert "SageMaker: Completed" in out and "billed" in out
    frame = job.metrics()
    assert sorted(zip(frame["host"], frame["rank"], frame["value"], strict=True)) == [
        ("algo-1", 0, 0.25),
        ("algo-2", 1, 0.25),
    ]
    assert job.result().metrics == {"loss": 0.25}
    model = job.model_data
    assert model == f"s3://{bucket}/{job.name}/output/model.tar.gz"
    body = s3.get_object(Bucket=bucket, Key=model.partition(f"{bucket}/")[2])["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert "weights" in archive.getnames()
    described = boto3.client("sagemaker").describe_training_job(TrainingJobName=job.name)
    assert job.describe()["TrainingJobArn"] == described["TrainingJobArn"]
    assert job.describe()["CreationTime"] == described["CreationTime"].timestamp()

    # On another machine: found by its name, with the same logs and metrics.
    monkeypatch.setenv("FLEETFIT_HOME", str(client / "other"))
    found = TensorFlow.attach(job.name)
    assert found.latest_training_job is not None
    found.latest_training_job.wait()
    assert found.latest_training_job.metrics()["value"].tolist() == frame["value"].tolist()
    assert found.model_data == model
    assert found.settings.distribution == MPI() and found.settings.instance_count == 2
    assert "[algo-2:rank 1] files: ['b']" in capfd.readouterr().out
    with pytest.raises(JobNotFoundError, match="SageMaker in us-east-1 has none either"):
        TensorFlow.attach("nobody")


def test_a_failed_script_raises_with_its_reason() -> None:
    with pytest.raises(TrainingJobError, match="ValueError: on purpose"):
        estimator(hyperparameters={"fail": 1}).fit(logs=False)


def test_an_interrupted_caller_leaves_the_job_alone_and_stop_ends_it(client: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "estimators.cli.main",
        "train",
        "train.py",
        "--source-dir",
        "code",
        "--name",
        "mine",
    ]
    where = ["-t", "ml.m5.xlarge", "--image", IMAGE, "--role", "arn:aws:iam::000000000000:role/train"]
    caller = subprocess.Popen(
        [*command, *where, "--", "--seconds", "600"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def is_training() -> bool:
        try:
            job = TrainingJob.attach("mine")
            return any("loss" in line.text for line in job.log_lines())
        except JobNotFoundError:
            return False

    until(is_training)
    caller.send_signal(signal.SIGINT)
    said, _ = caller.communicate(timeout=30)
    assert caller.returncode == 130
    assert "training job mine goes on at SageMaker, which bills it; its stop() ends it." in said
    job = TrainingJob.attach("mine")
    assert job.status == "InProgress"
    job.stop(wait=True)
    assert job.status == "Stopped"
    assert job.result().failure_reason is None
