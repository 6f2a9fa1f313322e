"""Jobs from end to end: real boto3, fleetfit's own SageMaker-compatible endpoint, real processes and files."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Serving
from waiting import until

from estimators import MPI, JobNotFoundError, RunOptions, TensorFlow, TrainingJobError, TuningJobError
from estimators.client.training_job import TrainingJob
from estimators.inputs import TrainingInput
from estimators.tuner import HyperparameterTuner, IntegerParameter

ROOT = Path(__file__).resolve().parents[5]
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/fleetfit-training:latest"
SCRIPT = """\
import argparse, os, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--rate", type=int, default=0)
parser.add_argument("--model_dir")
given = parser.parse_args()
files = os.environ.get("SM_CHANNEL_TRAIN")
print(f"files: {sorted(os.listdir(files)) if files else []}", flush=True)
print(f"loss: {0.25 + given.rate}", flush=True)
time.sleep(given.seconds)
Path(os.environ["SM_MODEL_DIR"], "weights").write_text("model")
print("ended", flush=True)
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a client of a running endpoint."""
    served = Serving(tmp_path_factory.mktemp("endpoint"), "--no-profile", "--max-jobs", "2")
    yield served.variables
    served.close()


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


def test_a_cluster_trains_as_everywhere_else(
    client: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import boto3

    s3 = boto3.session.Session().client("s3")
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
    assert job.result().final_metrics == {"loss": 0.25}
    model = job.model_data
    assert model == f"s3://{bucket}/{job.name}/output/model.tar.gz"
    body = s3.get_object(Bucket=bucket, Key=model.partition(f"{bucket}/")[2])["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert "weights" in archive.getnames()
    described = boto3.session.Session().client("sagemaker").describe_training_job(TrainingJobName=job.name)
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
    with pytest.raises(JobNotFoundError, match="SageMaker in us-east-1 has no such job either"):
        TensorFlow.attach("nobody")


def test_a_function_comes_back_with_its_value_or_its_exception(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDataError(Exception):
        """An own type, which takes what it does not pass on."""

        def __init__(self, channel: str, files: int) -> None:
            super().__init__(f"{files} files in {channel}")
            self.files = files

    def train(epochs: int, fails: bool = False) -> Any:
        if fails:
            raise NoDataError("train", 0)
        path = Path(os.environ["SM_MODEL_DIR"], "weights")
        path.write_text("0.5")
        return path

    job = estimator(entry_point=train, source_dir=None, hyperparameters={"epochs": 0}).fit(logs=False)
    assert job.value().read_text() == "0.5"
    with pytest.raises(TrainingJobError, match="NoDataError: 0 files in train") as caught:
        estimator(entry_point=train, source_dir=None, hyperparameters={"epochs": 1, "fails": True}).fit(logs=False)
    error = caught.value.__cause__
    assert isinstance(error, NoDataError) and error.files == 0 and "raise NoDataError" in str(error.__cause__)

    # On another machine, which has neither the code nor the function.
    monkeypatch.setenv("FLEETFIT_HOME", str(client / "other"))
    found = TensorFlow.attach(job.name).latest_training_job
    assert found is not None and found.value().read_text() == "0.5"


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
    assert (
        "training job mine continues on SageMaker and is billed; job.stop() or `fleetfit stop mine` ends the job."
        in said
    )
    job = TrainingJob.attach("mine")
    assert job.status == "InProgress"
    job.stop(wait=True)
    assert job.status == "Stopped"
    assert job.result().failure_reason is None


def tuner(most: int, **arguments: Any) -> HyperparameterTuner:
    hyperparameters = arguments.pop("hyperparameters", {})
    return HyperparameterTuner(
        estimator(base_job_name="tuned", hyperparameters=hyperparameters),
        "loss",
        {"rate": IntegerParameter(1, most)},
        **{"strategy": "Grid", "objective_type": "Minimize", "max_parallel_jobs": 2, **arguments},
    )


def test_a_tuning_job_is_sagemakers_own(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Created there and followed into the same record; whoever follows may be killed, or be on another machine."""
    import boto3

    searched = tuner(3, tags=[{"Key": "team", "Value": "a"}])
    searched.fit(wait=False)
    record = searched.latest_tuning_job
    assert record is not None
    until(lambda: record.trials())
    os.kill(record.status()["Fleetfit"]["pid"], signal.SIGKILL)
    searched.wait()
    rows = record.trials()
    assert [(row["state"], row["value"], row["values"]["rate"]) for row in rows] == [
        ("Completed", 1.25, "1"),
        ("Completed", 2.25, "2"),
        ("Completed", 3.25, "3"),
    ]
    service = boto3.session.Session().client("sagemaker")
    there = service.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=searched.name)
    described = searched.describe()
    assert described["HyperParameterTuningJobArn"] == there["HyperParameterTuningJobArn"]
    assert described["TrainingJobStatusCounters"]["Completed"] == 3
    assert searched.best_training_job() == there["BestTrainingJob"]["TrainingJobName"] == rows[0]["job"]
    frame = searched.analytics().dataframe()
    assert frame["FinalObjectiveValue"].tolist() == [1.25, 2.25, 3.25]

    monkeypatch.setenv("FLEETFIT_HOME", str(client / "other"))
    found = HyperparameterTuner.attach(searched.name)
    found.wait()
    assert found.analytics().dataframe()["FinalObjectiveValue"].tolist() == [1.25, 2.25, 3.25]
    assert found.objective_type == "Minimize"
    best = found.best_estimator()
    assert best.latest_training_job is not None
    assert best.latest_training_job.name == rows[0]["job"]
    assert best.settings.hyperparameters["rate"] == 1
    with pytest.raises(JobNotFoundError, match="SageMaker has no such tuning job either"):
        HyperparameterTuner.attach("nobody")
    monkeypatch.setenv("FLEETFIT_HOME", str(client / "third"))
    with pytest.raises(TuningJobError, match=r"SageMaker already has a tuning job named"):
        tuner(4).fit(job_name=searched.name)


def test_a_tuning_job_of_sagemakers_is_stopped() -> None:
    searched = tuner(9, hyperparameters={"seconds": 600})
    searched.fit(wait=False)
    record = searched.latest_tuning_job
    assert record is not None
    until(lambda: record.trials())
    searched.stop_tuning_job()
    searched.wait()
    assert searched.describe()["HyperParameterTuningJobStatus"] == "Stopped"
    assert {row["state"] for row in record.trials()} == {"Stopped"}
