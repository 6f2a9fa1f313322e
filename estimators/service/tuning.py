"""Implement the operations on hyperparameter tuning jobs: create, describe, list and stop them, and list trials."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimators.client import launch
from estimators.job.errors import BackendError, ConfigurationError, JobExistsError, JobNotFoundError
from estimators.service import settings
from estimators.service.errors import ServiceError, invalid
from estimators.service.paging import matches, page
from estimators.service.records import Jobs
from estimators.service.source import bring_source
from estimators.service.storage import Storage
from estimators.service.training import check_tags
from estimators.service.translation import Local, translate
from estimators.tuning import analytics, running
from estimators.tuning.config import TuningSpec
from estimators.tuning.ranges import LISTS
from estimators.tuning.record import TuningRecord, is_terminal, tuning_names
from estimators.tuning.request import resources_of, trial_request_of

_SORTED = {
    "Name": lambda status: (status["HyperParameterTuningJobName"],),
    "CreationTime": lambda status: (status["CreationTime"], status["HyperParameterTuningJobName"]),
    "Status": lambda status: tuple(
        status[member] for member in ("HyperParameterTuningJobStatus", "CreationTime", "HyperParameterTuningJobName")
    ),
}

#: The values by which a tuning job's training jobs are sorted.
_VALUE_OF: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "Name": lambda item: item["TrainingJobName"],
    "CreationTime": lambda item: item["CreationTime"],
    "Status": lambda item: item["TrainingJobStatus"],
    "FinalObjectiveMetricValue": lambda item: item["FinalHyperParameterTuningJobObjectiveMetric"]["Value"],
}


class TuningJobs:
    """The operations on tuning jobs.

    Args:
        jobs: The training jobs on record.
        storage: The S3 server of the endpoint.
        local: The backend for jobs, and the backend's settings.
        environment: The environment of the trials' jobs.
    """

    def __init__(self, jobs: Jobs, storage: Storage, local: Local, environment: Mapping[str, str]) -> None:
        self._jobs = jobs
        self._storage = storage
        self._local = local
        self._environment = dict(environment)

    def start(self) -> None:
        """Restart the processes of tuning jobs that were killed."""
        for record in self._records():
            self._ensure(record)

    @property
    def running(self) -> int:
        """Return how many tuning jobs are running."""
        return sum(record.is_supervised() for record in self._records())

    def create(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a CreateHyperParameterTuningJob request."""
        name = str(request["HyperParameterTuningJobName"])
        check_tags(request.get("Tags") or ())
        for member, why in (
            ("TrainingJobDefinitions", "a tuning job has one TrainingJobDefinition here"),
            ("Autotune", "only AWS knows the ranges that Autotune chooses; give the ranges"),
        ):
            if request.get(member) is not None:
                raise invalid(f"{member} is not available on a fleetfit endpoint: {why}.")
        definition = request.get("TrainingJobDefinition")
        if definition is None:
            raise invalid("TrainingJobDefinition is missing.")
        try:
            tuning = TuningSpec.from_config(
                name, request["HyperParameterTuningJobConfig"], request.get("WarmStartConfig")
            )
            running.check_possible(tuning, self._jobs.home)
            asked = trial_request_of(name, definition, tuning, request.get("Tags"))
            spec, options = translate(asked, self._local)
            with running.creating(
                tuning, estimator="Estimator", request=request, home=self._jobs.home, env=self._environment
            ) as template:
                bring_source(spec, template, self._storage)
                launch.fill(template, spec, options, None, time.time())
                template.write_json(template.asked_file, {"request": asked})
        except JobExistsError:
            raise ServiceError(
                "ResourceInUse",
                "Hyper parameter tuning job names must be unique within an AWS account and region, and a tuning job "
                f"with this name already exists ({self._arn(name)})",
            ) from None
        except (ConfigurationError, JobNotFoundError) as error:
            raise invalid(str(error)) from error
        return {"HyperParameterTuningJobArn": self._arn(name)}

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a DescribeHyperParameterTuningJob request."""
        record = self._get(request["HyperParameterTuningJobName"])
        self._ensure(record)
        answer = analytics.describe(record)
        answer["HyperParameterTuningJobArn"] = self._arn(record.name)
        config = answer["HyperParameterTuningJobConfig"]
        given = config.get("ParameterRanges") or {}
        answer["HyperParameterTuningJobConfig"] = {
            "TrainingJobEarlyStoppingType": "Off",
            **config,
            "ParameterRanges": {**{member: [] for member in LISTS.values()}, **given},
        }
        definition = answer["TrainingJobDefinition"]
        algorithm = {"MetricDefinitions": [], **definition["AlgorithmSpecification"]}
        answer["TrainingJobDefinition"] = {
            "EnableNetworkIsolation": False,
            "EnableInterContainerTrafficEncryption": False,
            "EnableManagedSpotTraining": False,
            **definition,
            "AlgorithmSpecification": algorithm,
            "ResourceConfig": resources_of(definition),  # the SDK's attach() reads this member
        }
        if "BestTrainingJob" in answer:
            answer["BestTrainingJob"] = self._with_arn(answer["BestTrainingJob"])
        return answer

    def stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a StopHyperParameterTuningJob request."""
        record = self._get(request["HyperParameterTuningJobName"])
        status = record.status()
        if is_terminal(status):
            raise invalid(
                "The request was rejected because the tuning job is in status "
                f"{status['HyperParameterTuningJobStatus']}."
            )
        record.ask_to_stop()
        self._ensure(record)
        return {}

    def list_jobs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ListHyperParameterTuningJobs request."""
        found = [(record, record.status()) for record in self._records()]
        found = [(record, status) for record, status in found if status and _matches(status, request)]
        key = _SORTED[request.get("SortBy", "Name")]
        shown, more = page(found, lambda item: key(item[1]), request)
        summaries = []
        for record, status in shown:
            config = record.read("request")["HyperParameterTuningJobConfig"]
            summaries.append(
                {
                    **status,
                    "HyperParameterTuningJobArn": self._arn(record.name),
                    "Strategy": config["Strategy"],
                    "ResourceLimits": config["ResourceLimits"],
                }
            )
        return {"HyperParameterTuningJobSummaries": summaries, **more}

    def list_training_jobs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ListTrainingJobsForHyperParameterTuningJob request."""
        record = self._get(request["HyperParameterTuningJobName"])
        self._ensure(record)
        wanted = request.get("StatusEquals")
        found = [item for item in analytics.summaries(record) if wanted in (None, item["TrainingJobStatus"])]
        by = request.get("SortBy", "Name")
        if by == "FinalObjectiveMetricValue":  # SageMaker returns only jobs that have a value
            found = [item for item in found if "FinalHyperParameterTuningJobObjectiveMetric" in item]
        shown, more = page(found, lambda item: (_VALUE_OF[by](item), item["TrainingJobName"]), request)
        return {"TrainingJobSummaries": [self._with_arn(item) for item in shown], **more}

    # --- inside ---

    def _records(self) -> Iterator[TuningRecord]:
        for name in tuning_names(self._jobs.home):
            with contextlib.suppress(JobNotFoundError):
                yield TuningRecord.open(name, self._jobs.home)

    def _get(self, name: str) -> TuningRecord:
        try:
            return TuningRecord.open(name, self._jobs.home)
        except JobNotFoundError:
            raise ServiceError(
                "ResourceNotFound",
                f"Amazon SageMaker can't find a tuning job with name {name} in region {self._jobs.region}.",
            ) from None

    def _ensure(self, record: TuningRecord) -> None:
        with contextlib.suppress(BackendError):  # tried again with the next request
            running.revive(record, self._environment)

    def _arn(self, name: str) -> str:
        return settings.tuning_arn(self._jobs.region, name)

    def _with_arn(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        return {**summary, "TrainingJobArn": self._jobs.arn(summary["TrainingJobName"])}


def _matches(status: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    name, state = status["HyperParameterTuningJobName"], status["HyperParameterTuningJobStatus"]
    return matches(request, name, state, status["CreationTime"], status["LastModifiedTime"])
