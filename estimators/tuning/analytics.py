"""Provide ``HyperparameterTuningJobAnalytics``, the SageMaker SDK's class that describes the trials of a tuning job."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.hyperparameters import decode_value
from container.contract.names import suggests_arguments
from estimators.tuning.record import TuningRecord

if TYPE_CHECKING:
    import pandas

#: SageMaker's status of a trial's job, by the state of the trial.
JOB_STATES = {
    "Running": "InProgress",
    "Completed": "Completed",
    "Pruned": "Stopped",
    "Failed": "Failed",
    "Stopped": "Stopped",
}


@suggests_arguments
class HyperparameterTuningJobAnalytics:
    """The trials of one tuning job.

    Args:
        hyperparameter_tuning_job_name: The name of the tuning job.
        sagemaker_session: An argument of the SageMaker SDK, without effect.

    Raises:
        JobNotFoundError: the tuning job does not exist.
    """

    def __init__(
        self, hyperparameter_tuning_job_name: str, sagemaker_session: Any = None, *, home: str | Path | None = None
    ) -> None:
        del sagemaker_session
        self._record = TuningRecord.open(hyperparameter_tuning_job_name, home)

    def __repr__(self) -> str:
        return f"<HyperparameterTuningJobAnalytics of {self.name!r}>"

    @property
    def name(self) -> str:
        """Return the tuning job's name."""
        return self._record.name

    @property
    def tuning_ranges(self) -> dict[str, dict[str, Any]]:
        """Return the ranges of the hyperparameters by name, as dicts in the format of a request."""
        lists = self._record.spec.parameter_ranges.values()
        return {item["Name"]: dict(item) for items in lists for item in items}

    def description(self, force_refresh: bool = False) -> dict[str, Any]:
        """Return the response of DescribeHyperParameterTuningJob, with times as seconds since the epoch.

        Args:
            force_refresh: An argument of the SageMaker SDK, without effect because nothing is cached.
        """
        del force_refresh
        return describe(self._record)

    def training_job_summaries(self, force_refresh: bool = False) -> list[dict[str, Any]]:
        """Return the response of ListTrainingJobsForHyperParameterTuningJob.

        Args:
            force_refresh: An argument of the SageMaker SDK, without effect because nothing is cached.
        """
        del force_refresh
        return summaries(self._record)

    def dataframe(self, force_refresh: bool = False) -> pandas.DataFrame:
        """Return a data frame with one row per trial.

        The first columns are the hyperparameters. The columns of the SageMaker SDK follow, beginning with
        ``TrainingJobName``. fleetfit adds the columns ``TrialState`` (``Completed``, ``Pruned``, ``Failed``,
        ``Stopped`` or ``Running``) and ``Reason``.

        Args:
            force_refresh: An argument of the SageMaker SDK, without effect because nothing is cached.
        """
        import pandas

        del force_refresh
        rows = []
        for row, item in zip(self._record.trials(), summaries(self._record), strict=False):
            out: dict[str, Any] = {name: _typed(text) for name, text in item["TunedHyperParameters"].items()}
            out["TrainingJobName"] = item["TrainingJobName"]
            out["TrainingJobStatus"] = item["TrainingJobStatus"]
            final = item.get("FinalHyperParameterTuningJobObjectiveMetric") or {}
            out["FinalObjectiveValue"] = final.get("Value")
            begin, end = item.get("TrainingStartTime"), item.get("TrainingEndTime")
            out["TrainingStartTime"], out["TrainingEndTime"] = _time(begin), _time(end)
            out["TrainingElapsedTimeSeconds"] = end - begin if begin and end else None
            out["TrialState"], out["Reason"] = row["state"], row["reason"]
            rows.append(out)
        return pandas.DataFrame(rows)

    def export_csv(self, filename: str) -> None:
        """Write the data frame to a CSV file.

        Args:
            filename: The path of the file.
        """
        self.dataframe().to_csv(filename)

    def clear_cache(self) -> None:
        """Do nothing, because nothing is cached."""


def describe(record: TuningRecord) -> dict[str, Any]:
    """Return the response of DescribeHyperParameterTuningJob without ARNs. Secrets are replaced by ``***``."""
    from estimators.job.secrets import mask_request

    request, status = record.read("request"), record.status()
    definition = dict(request.get("TrainingJobDefinition") or {})
    if definition:
        static = {**(definition.get("StaticHyperParameters") or {}), "_tuning_objective_metric": record.spec.objective}
        masked = mask_request({"HyperParameters": static, "Environment": definition.get("Environment") or {}})
        definition["StaticHyperParameters"] = masked["HyperParameters"]
        if definition.get("Environment"):
            definition["Environment"] = masked["Environment"]
    answer = {**{name: value for name, value in request.items() if name != "Tags"}, **status}
    if definition:
        answer["TrainingJobDefinition"] = definition
    best = status.get("Fleetfit", {}).get("best")
    for item, row in zip(summaries(record), record.trials(), strict=False):
        if row["number"] == best:
            answer["BestTrainingJob"] = item
    return answer


def summaries(record: TuningRecord) -> list[dict[str, Any]]:
    """Return the trials as SageMaker's summaries of training jobs, without ARNs."""
    spec = record.spec
    found = []
    for row in record.trials():
        over = row["state"] != "Running"
        item: dict[str, Any] = {
            "TrainingJobName": row["job"],
            "CreationTime": row["created"],
            "TrainingJobStatus": row.get("status") or JOB_STATES[row["state"]],
            "TunedHyperParameters": row["values"],
            "ObjectiveStatus": "Pending" if not over else "Failed" if row["value"] is None else "Succeeded",
        }
        if over:
            item["TrainingStartTime"] = row.get("started") or row["created"]
            item["TrainingEndTime"] = row["ended"]
        if row["state"] == "Failed":
            item["FailureReason"] = str(row["reason"])[:1024]
        if row["value"] is not None:
            item["FinalHyperParameterTuningJobObjectiveMetric"] = {
                "Type": spec.objective_type, "MetricName": spec.objective, "Value": row["value"],
            }  # fmt: skip
        found.append(item)
    return found


def _typed(text: str) -> Any:
    """Return a hyperparameter's text as a float if it is a number, as in the SageMaker SDK.

    A JSON string is decoded. Return any other text unchanged.
    """
    value = decode_value(text)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return text
    return float(value) if isinstance(value, int) else value


def _time(seconds: float | None) -> datetime.datetime | None:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc) if seconds is not None else None
