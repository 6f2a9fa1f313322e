"""Define a callback that sends the parameters, metrics and models of jobs to MLflow."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.names import suggests_arguments
from estimators.client.trackers.base import TrackedRun, TrackedValue, Tracker, facts_of, parameters_of

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob

#: Statuses of jobs -> statuses of MLflow.
_STATES = {"Completed": "FINISHED", "Failed": "FAILED", "Stopped": "KILLED"}
#: Maximum numbers of values and of parameters in one request.
_BATCH = 1000
_PARAMETERS = 100
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")
#: The tag with a job's name, by which the run of the job is found.
_TAG = "fleetfit.job"


@suggests_arguments
class MLflowCallback(Tracker):
    """A callback that logs each job as an MLflow run with parameters, metrics, status, and the model as an artifact.

    The callback uses its own MLflow client, so that the active run of your process is not changed, and MLflow's
    autologging is not turned on. A resumed job continues its run. If the server does not respond, the job is not
    delayed.

    Args:
        tracking_uri: The URI of the tracking server or store. The default is MLflow's setting (MLFLOW_TRACKING_URI).
        experiment: The name of the experiment, which is created if necessary. The default is MLFLOW_EXPERIMENT_NAME, or
            ``fleetfit`` if this variable is not set.
        tags: Additional tags for the runs.
        model: Whether to log the model. A model is logged only if it is on this machine.
        **options: Options of :class:`~estimators.client.trackers.base.Tracker`.
    """

    title = "MLflow"
    library = "mlflow"
    extra = "mlflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        *,
        tags: dict[str, str] | None = None,
        model: bool = True,
        ranks: str = "first",
        patience: float = 30.0,
    ) -> None:
        super().__init__(ranks=ranks, patience=patience)
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or None
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fleetfit"
        self._tags = dict(tags or {})
        self.logs_model = model

    def place(self) -> str:
        """Return a text that contains the URI of the tracking server or store, and the experiment's name."""
        return f"{self._uri} {self._experiment}"

    def open(self, job: TrainingJob, run: str | None, parent: str | None) -> _MLflowRun:
        """Create a run for the job, or continue the job's existing run."""
        client = self._client()
        facts = {f"fleetfit.{name}": value for name, value in facts_of(job).items()}
        tags = {**facts, **self._tags, **({"mlflow.parentRunId": parent} if parent else {})}
        found = self._run(client, job.name, run, tags, started=job.describe().get("CreationTime"))
        if run is None:
            from mlflow.entities import Param

            named = {name_of(name): value for name, value in parameters_of(job).items()}
            given = [Param(name, value) for name, value in named.items()]
            for place in range(0, len(given), _PARAMETERS):
                client.log_batch(found, params=given[place : place + _PARAMETERS])
        return _MLflowRun(client, found, self.logs_model)

    def open_study(self, name: str, run: str | None) -> str | None:
        """Create the run of a tuning job, which is the parent of the trials' runs, or continue the existing run."""
        return self._run(self._client(), name, run, {_TAG: name, **self._tags})

    def close_study(self, run: str | None, status: str) -> None:
        """Close a tuning job's run."""
        self._client().set_terminated(run, _STATES.get(status, "FINISHED"))

    def _client(self) -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient(self._uri)

    def _run(self, client: Any, name: str, run: str | None, tags: dict[str, str], started: float | None = None) -> str:
        if run is None:
            experiment = client.get_experiment_by_name(self._experiment)
            number = experiment.experiment_id if experiment is not None else client.create_experiment(self._experiment)
            # Search for a run that an earlier process created, but whose id this process does not know.
            known = client.search_runs([number], f"tags.`{_TAG}` = '{name}'", max_results=1)
            if not known:
                start = int(started * 1000) if started else None
                made = client.create_run(number, start_time=start, run_name=name, tags=tags)
                return str(made.info.run_id)
            run = str(known[0].info.run_id)
        client.update_run(run, status="RUNNING")
        return run


def name_of(name: str) -> str:
    """Return the name under which MLflow accepts a metric or a parameter. MLflow uses names as paths of files."""
    return posixpath.normpath(f"/{_NOT_IN_NAMES.sub('_', name)}").lstrip("/") or "_"


class _MLflowRun(TrackedRun):
    """The MLflow run of a job."""

    def __init__(self, client: Any, run: str, logs_model: bool) -> None:
        self._client = client
        self._logs_model = logs_model
        self.id = run

    def log(self, points: Sequence[TrackedValue]) -> None:
        """Send values of metrics. One request contains at most 1000 values."""
        from mlflow.entities import Metric

        for place in range(0, len(points), _BATCH):
            batch = [
                Metric(name_of(point.name), point.value, int(point.time * 1000), point.step)
                for point in points[place : place + _BATCH]
            ]
            self._client.log_batch(self.id, metrics=batch)

    def finish(self, status: str, model: Path | None) -> None:
        """Log the model if the callback logs models, and close the run."""
        if model is not None and self._logs_model:
            self._client.log_artifact(self.id, str(model), "model")
        self._client.set_terminated(self.id, _STATES.get(status, "FINISHED"))
