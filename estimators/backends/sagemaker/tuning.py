"""Create, describe and stop the tuning jobs that SageMaker itself runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimators.backends.sagemaker import packing, shipping
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.sagemaker.explaining import explain, is_missing, is_taken, needs_login, passes, said_by
from estimators.backends.sagemaker.mirror import plain
from estimators.backends.sagemaker.options import SageMakerOptions
from estimators.job.errors import ConfigurationError, JobExistsError, UnsupportedError
from estimators.job.request import RunOptions, TrainingJobSpec

#: Members of a training job's request that the definition of a tuning job's trials also has.
_SHARED = frozenset(
    {
        "AlgorithmSpecification", "CheckpointConfig", "EnableInterContainerTrafficEncryption",
        "EnableManagedSpotTraining", "EnableNetworkIsolation", "Environment", "InputDataConfig", "OutputDataConfig",
        "ResourceConfig", "RetryStrategy", "RoleArn", "StoppingCondition", "VpcConfig",
    }
)  # fmt: skip
#: Members of a training job's request whose values are elsewhere in a tuning job's request.
_OTHERWISE = frozenset({"TrainingJobName", "HyperParameters", "Tags"})
_ALGORITHM = frozenset({"AlgorithmName", "MetricDefinitions", "TrainingImage", "TrainingInputMode"})
#: Maximum difference between AWS's clock and this machine's clock, in seconds: signed requests allow five minutes.
_CLOCKS_S = 300.0


class SageMakerTuning:
    """A client of the SageMaker tuning jobs in one region.

    See :class:`estimators.backends.base.TuningService` for the interface.

    Args:
        options: The run options of the trials, whose ``backend_options`` contain the region, the profile and the time
            between polls.

    Raises:
        ConfigurationError: no region is known, or the profile does not exist.
    """

    def __init__(self, options: RunOptions) -> None:
        self._given = SageMakerOptions.of(options.backend_options)
        self.poll_s = self._given.poll_seconds
        self.reconnect()

    def reconnect(self) -> None:
        """Read the credentials again, because the user may have logged in since the last request."""
        self._aws = Aws(region=self._given.region, profile=self._given.profile)

    @staticmethod
    def check(spec: TrainingJobSpec, tuning: Mapping[str, Any]) -> None:
        """Refuse options that SageMaker's tuning jobs do not support, and values that botocore would reject.

        A tuning job describes its trials in a definition. An option is not supported if the definition has no member
        for it.

        Args:
            spec: The job of a trial.
            tuning: The CreateHyperParameterTuningJob request.

        Raises:
            ConfigurationError: a value does not have the type in AWS's model, or is shorter or smaller than AWS's model
                allows.
            UnsupportedError: an option is not supported. The message has the reason and the remedy.
        """
        request = spec.to_request()
        if shipping.is_shipped(spec):
            raise UnsupportedError(
                f"image {spec.algorithm.image!r}: SageMaker's tuning jobs cannot set how a container is started, so "
                "fleetfit cannot send its toolkit with the job. Use fleetfit's own image (`fleetfit image push`), or "
                "RunOptions(backend_options={'toolkit': 'image'}) for the image's own toolkit."
            )
        strange = sorted(request.keys() - _SHARED - _OTHERWISE)
        strange += sorted(request.get("AlgorithmSpecification", {}).keys() - _ALGORITHM)
        if strange:
            raise UnsupportedError(f"{', '.join(strange)}: SageMaker's tuning jobs have no such member. Leave it out.")
        import botocore.session
        import botocore.validate

        model = botocore.session.get_session().get_service_model("sagemaker")
        shape = model.operation_model("CreateHyperParameterTuningJob").input_shape
        report = botocore.validate.ParamValidator().validate(dict(tuning), shape)
        if report.has_errors():
            raise ConfigurationError(f"SageMaker does not accept this tuning job: {report.generate_report()}")

    def upload(self, spec: TrainingJobSpec, source: Path) -> None:
        """Upload the code that all trials run."""
        wanted = shipping.uploads(spec, has_source=source.is_dir())
        packing.upload(self._aws, spec, source, wanted, lambda text: None)

    def create(self, request: Mapping[str, Any], since: float) -> None:
        """Create a tuning job once.

        If the response to an earlier call was lost, SageMaker already has the tuning job, and this call has no effect.

        Args:
            request: The CreateHyperParameterTuningJob request.
            since: The time when the request was first sent, in seconds since the epoch.

        Raises:
            JobExistsError: another tuning job has the same name.
        """
        name = request["HyperParameterTuningJobName"]
        try:
            self._client.create_hyper_parameter_tuning_job(**request)
        except Exception as error:
            if not is_taken(error):
                raise
            there = self.describe(name)
            if there is None or not _is_of(there, request, since):
                raise JobExistsError(
                    f"SageMaker already has a tuning job named {name!r}: choose another job_name."
                ) from error

    def describe(self, name: str) -> dict[str, Any] | None:
        """Return DescribeHyperParameterTuningJob's response. Return None if the tuning job does not exist."""
        try:
            answer = self._client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
        except Exception as error:
            if is_missing(error):
                return None
            raise
        answer.pop("ResponseMetadata", None)
        found: dict[str, Any] = plain(answer)
        return found

    def trials(self, name: str) -> list[dict[str, Any]]:
        """Return the summaries of a tuning job's training jobs, ordered by creation time."""
        pages = self._client.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job").paginate(
            HyperParameterTuningJobName=name,
            SortBy="CreationTime",
            SortOrder="Ascending",
            PaginationConfig={"PageSize": 100},
        )
        return [plain(item) for page in pages for item in page["TrainingJobSummaries"]]

    def stop(self, name: str) -> None:
        """Request that SageMaker stop a tuning job. Do nothing if the tuning job has ended or does not exist."""
        try:
            self._client.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
        except Exception as error:
            if "in status" not in said_by(error) and not is_missing(error):
                raise

    def explain(self, error: Exception) -> tuple[str, bool]:
        """Return a description of an error, and whether a retry may succeed.

        If the credentials have expired or are wrong, read them again. A retry may then succeed after a new login.
        """
        if needs_login(error):
            with contextlib.suppress(Exception):  # the next call raises the same error
                self.reconnect()
        return explain(error), passes(error) or needs_login(error)

    @property
    def _client(self) -> Any:
        return self._aws.client("sagemaker")


def _is_of(answer: Mapping[str, Any], request: Mapping[str, Any], since: float) -> bool:
    """Return whether our request created an existing tuning job.

    If SageMaker's response to the request is lost, the repeated request fails because the tuning job exists already.

    Args:
        answer: DescribeHyperParameterTuningJob's response about the existing tuning job.
        request: Our CreateHyperParameterTuningJob request.
        since: The time when the request was first sent, in seconds since the epoch.
    """
    created = answer.get("CreationTime")
    asked, there = request["TrainingJobDefinition"], answer.get("TrainingJobDefinition") or {}
    static = {**(there.get("StaticHyperParameters") or {})}
    static.pop("_tuning_objective_metric", None)
    config = answer.get("HyperParameterTuningJobConfig") or {}
    ranges = request["HyperParameterTuningJobConfig"]["ParameterRanges"]
    return (
        isinstance(created, int | float)
        and created >= since - _CLOCKS_S
        and all((config.get("ParameterRanges") or {}).get(kind) == given for kind, given in ranges.items() if given)
        and asked["RoleArn"] == there.get("RoleArn")
        and (asked.get("StaticHyperParameters") or {}) == static
    )
