"""A job that is followed through everything that AWS does to it. AWS itself is played; supervisor and S3 are real."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_server import ANSWER_LOST, DENIED, EXPIRED, LOST, THROTTLED, Aws, Fault
from waiting import until

from container.contract import wire
from container.contract.failures import Cause, Failure
from estimators import MPI, RunOptions, TensorFlow, TrainingJobError
from estimators.client.training_job import TrainingJob
from estimators.job.errors import UnsupportedError
from estimators.records.record import JobRecord, job_names
from estimators.service.s3.server import S3Server

ROLE = "arn:aws:iam::123456789012:role/train"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    with Aws() as server:
        for service in ("SAGEMAKER", "CLOUDWATCH_LOGS"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", server.endpoint)
        yield server


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with S3Server(tmp_path / "s3") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
        folder = tmp_path / "s3" / "bucket"
        folder.mkdir()
        yield folder


@pytest.fixture(autouse=True)
def nobody_goes_on_following(environment: Path) -> Iterator[None]:
    """Ends the supervisors that a failed test has left: they would follow their jobs for ever."""
    yield
    for name in job_names(environment / "home"):
        job = TrainingJob(JobRecord.open(name, environment / "home"))
        pid = job._supervisor_pid()
        if job.record.is_supervised() and job.status == "InProgress" and pid is not None:
            os.kill(pid, signal.SIGKILL)


def estimator(tmp_path: Path, **arguments: Any) -> TensorFlow:
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text("print('hello')\n")
    return TensorFlow(
        **{
            "entry_point": "train.py",
            "source_dir": str(code),
            "instance_count": 2,
            "instance_type": "ml.m5.xlarge",
            "image_uri": IMAGE,
            "role": ROLE,
            "output_path": "s3://bucket/out",
            "distribution": MPI(),
            "run_options": RunOptions(backend_options={"poll_seconds": 0.1}),
            **arguments,
        }
    )


def event(kind: str, host: str, rank: int | None = None, **data: Any) -> bytes:
    return wire.Event(kind=kind, host=host, rank=rank, data=data).to_line()


def texts(job: TrainingJob) -> list[str]:
    return [line.text for line in job.log_lines()]


def lose_and_find(aws: Aws, job: TrainingJob, number: int, text: str) -> TrainingJob:
    """End a job's supervisor, let the job print something, and attach to it."""
    pid = job._supervisor_pid()
    assert pid is not None
    os.kill(pid, number)
    until(lambda: not job.record.is_supervised())
    assert job.status == "InProgress" and "no process follows" in job.warnings[-1]
    aws.say("algo-1", event("metric", "algo-1", 0, name="loss", value=0.5), f"[algo-1:rank 0] {text}\n")
    found = TrainingJob.attach(job.name)
    until(lambda: text in texts(found))
    return found


def test_a_job_through_everything(aws: Aws, bucket: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    aws.fail("CreateTrainingJob", ANSWER_LOST)  # the job is there, and nobody has been told
    job = estimator(tmp_path, use_spot_instances=True, max_wait=90000, checkpoint_s3_uri="s3://bucket/checkpoints").fit(
        wait=False
    )
    assert aws.asked("CreateTrainingJob") == 2 and len(aws.created) == 1
    request = aws.created[0]

    # What was sent: the toolkit goes along, since the image is not ours.
    assert request["AlgorithmSpecification"]["ContainerEntrypoint"] == [
        "python3",
        "/opt/ml/input/data/fleetfit/start.py",
    ]
    channel = request["InputDataConfig"][0]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == f"s3://bucket/out/{job.name}/source/"
    source = bucket / "out" / job.name / "source"
    assert sorted(os.listdir(source)) == ["sourcedir.tar.gz", "start.py", "toolkit.tar.gz"]
    with tarfile.open(source / "sourcedir.tar.gz") as archive:
        assert archive.getnames() == ["train.py"]
    with tarfile.open(source / "toolkit.tar.gz") as archive:
        assert "container/__main__.py" in archive.getnames()

    # Throttling and lost connections change nothing; expired credentials are said, and waited for.
    aws.fail("DescribeTrainingJob", THROTTLED, LOST, Fault(500, "InternalFailure"))
    aws.fail("GetLogEvents", THROTTLED, LOST)
    aws.say("algo-1", event("phase", "algo-1", name="toolkit_started"), b"[algo-1:rank 0] one\n")
    aws.say("algo-2", b"[algo-2:rank 1] two\r[algo-2:rank 1] three\n")
    aws.step("Training", TrainingStartTime=time.time())
    until(lambda: {"one", "two", "three"} <= set(texts(job)))
    aws.fail("DescribeTrainingJob", EXPIRED, EXPIRED, EXPIRED)
    until(lambda: any("token" in warning for warning in job.warnings))
    until(lambda: any("answers again" in text for text in texts(job)))
    assert job.status == "InProgress" and job.secondary_status == "Training"

    # The supervisor is killed: the job goes on, and is found again, with every line once.
    job = lose_and_find(aws, job, signal.SIGKILL, "four")
    job = lose_and_find(aws, job, signal.SIGTERM, "five")
    assert aws.asked("StopTrainingJob") == 0
    assert len(job.metrics()) == 2

    # Spot capacity goes and comes: other streams, another attempt.
    aws.step("Interrupted")
    aws.step("Starting")
    aws.say("algo-1", b"[algo-1:rank 0] again\n", start=2)
    aws.say("algo-2", b"[algo-2:rank 1] again\n", start=2)
    failure = Failure(
        cause=Cause.PROCESS,
        message="ValueError: no (exited with code 3)",
        host="algo-2",
        process="rank 1",
        rank=1,
        exit_code=3,
        traceback="Traceback (most recent call last):\nValueError: no",
    )
    aws.step("Training")
    aws.say("algo-2", wire.Event(kind="failure", host="algo-2", data=failure.to_dict()).to_line(), start=2)
    aws.step(
        "Failed",
        "Failed",
        FailureReason="AlgorithmError: algo-2, rank 1: ValueError: no, exit code: 1",
        TrainingEndTime=time.time(),
        TrainingTimeInSeconds=100,
        BillableTimeInSeconds=40,
    )
    with pytest.raises(TrainingJobError) as caught:
        job.wait()
    assert (caught.value.host, caught.value.rank, caught.value.exit_code) == ("algo-2", 1, 3)
    assert str(caught.value).endswith("ValueError: no")
    assert job.describe()["FailureReason"].startswith("AlgorithmError")
    result = job.result()
    assert (result.billable_s, result.spot_savings) == (40, 60.0)
    assert result.final_metrics == {"loss": 0.5}
    lines = [(line.attempt, line.process, line.text) for line in job.log_lines() if line.process]
    assert sorted(lines) == [
        (0, "rank 0", "five"),
        (0, "rank 0", "four"),
        (0, "rank 0", "one"),
        (0, "rank 1", "three"),
        (0, "rank 1", "two"),
        (1, "rank 0", "again"),
        (1, "rank 1", "again"),
    ]
    assert [text for text in texts(job) if text.startswith("Uploading the code")] != []
    steps = [text for text in texts(job) if text.startswith("SageMaker: ") and "now" in text]
    assert [text.split()[-1] for text in steps] == [
        "Starting", "Training", "Interrupted", "Starting", "Training", "Failed",
    ]  # fmt: skip
    assert re.search(r"\[algo-1:rank 0( ×2)?\] again", capfd.readouterr().out)


def test_stopping_and_logs_that_are_not_permitted(aws: Aws, bucket: Path, tmp_path: Path) -> None:
    def stopped() -> None:
        aws.step("Stopping", "Stopping")
        aws.step("Stopped", "Stopped", TrainingEndTime=time.time(), TrainingTimeInSeconds=9, BillableTimeInSeconds=9)

    aws.on_stop = stopped
    aws.fail("DescribeLogStreams", *[DENIED] * 1000)
    job = estimator(tmp_path, image_uri="fleetfit-training:1", instance_count=1, distribution=None).fit(wait=False)
    assert "ContainerEntrypoint" not in aws.created[0]["AlgorithmSpecification"]
    uri = f"s3://bucket/out/{job.name}/source/sourcedir.tar.gz"
    assert aws.created[0]["HyperParameters"]["sagemaker_submit_directory"] == f'"{uri}"'
    until(lambda: any("logs cannot be read" in warning for warning in job.warnings))
    with pytest.raises(UnsupportedError, match="gives every script 120 s"):
        job.stop(grace=1)
    aws.fail("StopTrainingJob", LOST)
    job.stop(wait=True)
    assert (job.status, job.failure) == ("Stopped", None)
    job.wait()  # a stopped job does not raise


def test_a_supervisor_whose_record_is_removed_ends(aws: Aws, bucket: Path, tmp_path: Path) -> None:
    job = estimator(tmp_path, instance_count=1, distribution=None).fit(wait=False)
    process = job._process
    assert process is not None
    aws.fail("DescribeTrainingJob", *[LOST] * 1000)
    shutil.rmtree(job.record.path.rename(tmp_path / "aside"))  # at once: the supervisor still makes files in it
    until(lambda: process.poll() is not None)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(400, "ResourceLimitExceeded", "The account-level service limit is 0 Instances"), "Service Quotas"),
        (Fault(400, "ValidationException", "Could not assume role arn:x."), "must trust sagemaker.amazonaws.com"),
        (None, "already has a training job named 'mine'"),  # which another client has started
    ],
)
def test_what_sagemaker_refuses(aws: Aws, bucket: Path, tmp_path: Path, fault: Fault | None, said: str) -> None:
    if fault is None:
        aws.CreateTrainingJob({"TrainingJobName": "mine", "RoleArn": "arn:other"})
    else:
        aws.fail("CreateTrainingJob", fault)
    with pytest.raises(TrainingJobError, match=said) as caught:
        estimator(tmp_path).fit(wait=False, job_name="mine")
    if fault is not None:
        assert fault.message.rstrip(".") in str(caught.value)
        assert TrainingJob.attach("mine").status == "Failed"
        assert aws.asked("DescribeTrainingJob") == 0
