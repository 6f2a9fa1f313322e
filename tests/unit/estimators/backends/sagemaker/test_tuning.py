"""SageMaker's own tuning jobs: what is asked of AWS, and answers in the form of AWS's model."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator, RunOptions
from estimators.backends.sagemaker.tuning import SageMakerTuning
from estimators.job.errors import JobExistsError
from estimators.tuner import (
    CategoricalParameter,
    ContinuousParameter,
    HyperparameterTuner,
    IntegerParameter,
    WarmStartConfig,
    WarmStartTypes,
)

ARN = "arn:aws:sagemaker:eu-central-1:123456789012:hyper-parameter-tuning-job/search"
CREATED = datetime.datetime(2026, 11, 26, 9, 0, tzinfo=datetime.timezone.utc)
COUNTERS = {"Completed": 1, "InProgress": 1, "RetryableError": 0, "NonRetryableError": 0, "Stopped": 0}


def trial(number: int, status: str, **more: Any) -> dict[str, Any]:
    return {
        "TrainingJobName": f"search-{number:03d}-1a2b3c4d",
        "TrainingJobArn": f"arn:aws:sagemaker:eu-central-1:123456789012:training-job/search-{number:03d}-1a2b3c4d",
        "CreationTime": CREATED,
        "TrainingJobStatus": status,
        "TunedHyperParameters": {"rate": "0.05", "batch": "64", "optimizer": '"adam"'},
        **more,
    }


@pytest.fixture
def request_of_a_tuner(tmp_path: Path) -> dict[str, Any]:
    """The request of a tuner with all that SageMaker's have."""
    (tmp_path / "train.py").write_text("")
    estimator = Estimator(
        entry_point="train.py", source_dir=str(tmp_path), instance_type="ml.m5.xlarge", instance_count=2,
        image_uri="123456789012.dkr.ecr.eu-central-1.amazonaws.com/fleetfit-training:latest",
        role="arn:aws:iam::123456789012:role/train", hyperparameters={"layers": 3},
    )  # fmt: skip
    tuner = HyperparameterTuner(
        estimator,
        "loss",
        {
            "rate": ContinuousParameter(0.001, 0.1, "Logarithmic"),
            "batch": IntegerParameter(16, 128),
            "optimizer": CategoricalParameter(["sgd", "adam"]),
        },
        metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        objective_type="Minimize",
        max_jobs=4,
        max_parallel_jobs=2,
        early_stopping_type="Auto",
        warm_start_config=WarmStartConfig(WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM, {"earlier"}),
    )
    return dict(tuner.plan({"train": "s3://bucket/train"}, job_name="search").request)


@pytest.fixture
def service() -> SageMakerTuning:
    return SageMakerTuning(RunOptions())


def test_it_is_created_by_the_request_that_the_plan_shows(
    stub: Callable[[str], Any], service: SageMakerTuning, request_of_a_tuner: dict[str, Any]
) -> None:
    answer = {"HyperParameterTuningJobArn": ARN}
    stub("sagemaker").add_response("create_hyper_parameter_tuning_job", answer, request_of_a_tuner)
    service.create(request_of_a_tuner, CREATED.timestamp())


def test_its_trials_come_in_pages(stub: Callable[[str], Any], service: SageMakerTuning) -> None:
    value = {"MetricName": "loss", "Value": 0.25, "Type": "Minimize"}
    first = [trial(1, "Completed", FinalHyperParameterTuningJobObjectiveMetric=value, TrainingEndTime=CREATED)]
    asked = {
        "HyperParameterTuningJobName": "search", "SortBy": "CreationTime", "SortOrder": "Ascending", "MaxResults": 100,
    }  # fmt: skip
    listing = "list_training_jobs_for_hyper_parameter_tuning_job"
    stub("sagemaker").add_response(listing, {"TrainingJobSummaries": first, "NextToken": "more"}, asked)
    second = {"TrainingJobSummaries": [trial(2, "InProgress")]}
    stub("sagemaker").add_response(listing, second, {**asked, "NextToken": "more"})
    found = service.trials("search")
    assert [one["TrainingJobStatus"] for one in found] == ["Completed", "InProgress"]
    assert found[0]["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] == 0.25
    assert found[0]["CreationTime"] == CREATED.timestamp()


def described(request: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return DescribeHyperParameterTuningJob's answer for a request."""
    return {
        "HyperParameterTuningJobArn": ARN,
        "HyperParameterTuningJobStatus": "InProgress",
        "CreationTime": CREATED,
        "LastModifiedTime": CREATED,
        "TrainingJobStatusCounters": COUNTERS,
        "ObjectiveStatusCounters": {"Succeeded": 1, "Pending": 1, "Failed": 0},
        **{name: value for name, value in request.items() if name != "Tags"},
        **more,
    }


def test_one_that_was_created_though_the_answer_was_lost_is_known_again(
    stub: Callable[[str], Any], service: SageMakerTuning, request_of_a_tuner: dict[str, Any]
) -> None:
    definition = request_of_a_tuner["TrainingJobDefinition"]
    static = definition["StaticHyperParameters"]
    for there in ({**static, "_tuning_objective_metric": "loss"}, {**static, "layers": "4"}):  # AWS's own is added
        stub("sagemaker").add_client_error(
            "create_hyper_parameter_tuning_job", "ResourceInUse", "A tuning job with that name already exists."
        )
        changed = {"TrainingJobDefinition": {**definition, "StaticHyperParameters": there}}
        stub("sagemaker").add_response("describe_hyper_parameter_tuning_job", described(request_of_a_tuner, **changed))
    service.create(request_of_a_tuner, CREATED.timestamp())
    with pytest.raises(JobExistsError, match="SageMaker already has a tuning job named 'search'"):
        service.create(request_of_a_tuner, CREATED.timestamp())


def test_one_that_is_not_there_is_no_error(stub: Callable[[str], Any], service: SageMakerTuning) -> None:
    stub("sagemaker").add_client_error(
        "describe_hyper_parameter_tuning_job", "ResourceNotFound", "Amazon SageMaker can't find a tuning job with name"
    )
    assert service.describe("search") is None


def test_a_stop_of_one_that_is_over_is_no_error(stub: Callable[[str], Any], service: SageMakerTuning) -> None:
    stub("sagemaker").add_response("stop_hyper_parameter_tuning_job", {}, {"HyperParameterTuningJobName": "search"})
    stub("sagemaker").add_client_error(
        "stop_hyper_parameter_tuning_job", "ValidationException", "The tuning job is in status Completed."
    )
    service.stop("search")
    service.stop("search")
