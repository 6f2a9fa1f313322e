"""``fleetfit serve --backend docker``: clients' jobs in containers, of the SDK 2.x's form and of the 3.x's."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from serving import Serving
from waiting import until

pytestmark = pytest.mark.timeout(1500)  # the first one has the images made

#: As the SDK 2.x's estimators start it: by the image's toolkit.
SCRIPT = """
import os
os.makedirs("/opt/ml/checkpoints", exist_ok=True)
host = os.environ["SM_CURRENT_HOST"]
with open(f"/opt/ml/checkpoints/{host}", "w") as file:
    file.write(host)
with open("/opt/ml/model/weights", "w") as file:
    file.write("w")
import boto3
bucket = os.environ["BUCKET"]
boto3.client("s3").put_object(Bucket=bucket, Key="written/by-the-script", Body=b"w")
job = boto3.client("sagemaker").describe_training_job(TrainingJobName=os.environ["TRAINING_JOB_NAME"])
print("described", job["TrainingJobStatus"])
print("read", sorted(os.listdir("/opt/ml/input/data/train")), flush=True)
"""
#: As the SDK 3.x's drivers are: a program in a channel, which the container runs.
DRIVER = '#!/bin/sh\necho "driven on $(hostname)"; cat /opt/ml/input/config/hyperparameters.json\n'


def channel(served: Serving, name: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{served.bucket.name}/{name}/"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def test_jobs_of_both_sdks_forms(image: str, tmp_path: Path) -> None:
    mapped = ("--image-map", f"*/pytorch-training:*={image}")
    served = Serving(tmp_path / "endpoint", "--no-profile", "--backend", "docker", "--max-jobs", "2", *mapped)
    try:
        for name in ("train/a", "train/b", "sm_drivers/run.sh"):
            path = served.bucket / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(DRIVER)
        by_toolkit = served.request(
            "by-toolkit",
            SCRIPT,
            InputDataConfig=[channel(served, "train")],
            Environment={"BUCKET": served.bucket.name},
            CheckpointConfig={"S3Uri": f"s3://{served.bucket.name}/checkpoints"},
        )
        driven: dict[str, Any] = {
            **served.request("driven", ""),
            "HyperParameters": {"epochs": "3"},
            "InputDataConfig": [channel(served, "sm_drivers")],
        }
        driven["AlgorithmSpecification"] = {
            "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5-cpu-py311",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["/bin/bash", "-c"],
            "ContainerArguments": [
                "chmod +x /opt/ml/input/data/sm_drivers/run.sh && /opt/ml/input/data/sm_drivers/run.sh"
            ],
        }
        sm = served.client("sagemaker")
        for request in (by_toolkit, driven):
            sm.create_training_job(**request)
        for request in (by_toolkit, driven):
            name = request["TrainingJobName"]
            described = until(lambda name=name: over(sm, name))
            assert described["TrainingJobStatus"] == "Completed", (described, said(served, name))
            assert described["AlgorithmSpecification"] == request["AlgorithmSpecification"]
        assert "read ['a', 'b']" in said(served, "by-toolkit")
        assert "described InProgress" in said(served, "by-toolkit")
        assert (served.bucket / "written" / "by-the-script").read_text() == "w"
        assert {path.name for path in (served.bucket / "checkpoints").iterdir()} >= {"algo-1"}
        with tarfile.open(served.bucket / "out" / "by-toolkit" / "output" / "model.tar.gz") as archive:
            assert archive.getnames() == ["weights"]
        assert "driven on algo-1" in said(served, "driven")
        assert any('"epochs": "3"' in line for line in said(served, "driven"))
    finally:
        served.close()


def over(sm: Any, name: str) -> dict[str, Any] | None:
    """A job's description once it is over."""
    described: dict[str, Any] = sm.describe_training_job(TrainingJobName=name)
    return None if described["TrainingJobStatus"] == "InProgress" else described


def said(served: Serving, name: str) -> list[str]:
    """What a job's hosts printed."""
    events = served.client("logs").filter_log_events(
        logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=f"{name}/"
    )["events"]
    return [event["message"] for event in events]
