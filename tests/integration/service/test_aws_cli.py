"""The aws command line, by the profile alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from serving import Serving
from waiting import until

pytestmark = pytest.mark.network


def test_create_describe_list_wait_stop_and_logs(served: Serving, aws_cli: Path, tmp_path: Path) -> None:
    def aws(*words: str) -> str:
        done = subprocess.run(
            [aws_cli.with_name("python"), aws_cli, *words],
            env=served.by_profile(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    data = tmp_path / "data.txt"
    data.write_text("content")
    aws("s3", "cp", str(data), f"s3://{served.bucket.name}/cli/data.txt")
    assert (served.bucket / "cli" / "data.txt").read_text() == "content"
    request = tmp_path / "request.json"
    request.write_text(json.dumps(served.request("by-cli", "print('from the command line')")))
    made = json.loads(aws("sagemaker", "create-training-job", "--cli-input-json", f"file://{request}"))
    assert made["TrainingJobArn"].endswith(":training-job/by-cli")

    # The command's own wait looks every two minutes, and the first time at once.
    boto3 = served.client("sagemaker")
    until(lambda: boto3.describe_training_job(TrainingJobName="by-cli")["TrainingJobStatus"] == "Completed")
    described = json.loads(aws("sagemaker", "describe-training-job", "--training-job-name", "by-cli"))
    assert described["SecondaryStatus"] == "Completed"
    aws("sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name", "by-cli")
    listed = json.loads(aws("sagemaker", "list-training-jobs", "--name-contains", "by-cli"))
    assert [job["TrainingJobStatus"] for job in listed["TrainingJobSummaries"]] == ["Completed"]
    words = ["--log-group-name", "/aws/sagemaker/TrainingJobs", "--log-stream-name-prefix", "by-cli"]
    events = json.loads(aws("logs", "filter-log-events", *words))["events"]
    assert "from the command line" in [event["message"] for event in events]
    request.write_text(json.dumps(served.request("by-cli-2", "import time\ntime.sleep(600)")))
    aws("sagemaker", "create-training-job", "--cli-input-json", f"file://{request}")
    aws("sagemaker", "stop-training-job", "--training-job-name", "by-cli-2")
    until(lambda: boto3.describe_training_job(TrainingJobName="by-cli-2")["TrainingJobStatus"] == "Stopped")

    # A tuning job, whose trials do nothing but report.
    script = "import sys\nprint('score=' + sys.argv[sys.argv.index('--level') + 1])"
    trial = served.request("searched-by-cli", script)
    algorithm = {**trial["AlgorithmSpecification"], "MetricDefinitions": [{"Name": "score", "Regex": "score=(.*)"}]}
    others = ("RoleArn", "OutputDataConfig", "ResourceConfig", "StoppingCondition")
    levels = [{"Name": "level", "Values": ["1", "2"]}]
    tuning = {
        "HyperParameterTuningJobName": "searched-by-cli",
        "HyperParameterTuningJobConfig": {
            "Strategy": "Grid",
            "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "score"},
            "ResourceLimits": {"MaxParallelTrainingJobs": 2},
            "ParameterRanges": {"CategoricalParameterRanges": levels},
        },
        "TrainingJobDefinition": {
            **{name: trial[name] for name in others},
            "AlgorithmSpecification": algorithm,
            "StaticHyperParameters": trial["HyperParameters"],
        },
    }
    request.write_text(json.dumps(tuning))
    made = json.loads(aws("sagemaker", "create-hyper-parameter-tuning-job", "--cli-input-json", f"file://{request}"))
    assert made["HyperParameterTuningJobArn"].endswith(":hyper-parameter-tuning-job/searched-by-cli")
    name = ("--hyper-parameter-tuning-job-name", "searched-by-cli")

    def status() -> str:
        found = boto3.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName="searched-by-cli")
        return str(found["HyperParameterTuningJobStatus"])

    until(lambda: status() == "Completed")
    words = ("--sort-by", "FinalObjectiveMetricValue", "--sort-order", "Descending")
    listed = json.loads(aws("sagemaker", "list-training-jobs-for-hyper-parameter-tuning-job", *name, *words))
    assert [job["TunedHyperParameters"]["level"] for job in listed["TrainingJobSummaries"]] == ["2", "1"]
