"""Define a callback that sends the parameters, metrics and models of jobs to Weights & Biases."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.names import suggests_arguments, unknown
from estimators.client.trackers.base import TrackedRun, TrackedValue, Tracker, facts_of, parameters_of, user_folder
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob

_MODES = ("offline", "online")
#: The name under which the steps of the values are sent, for the x-axis. The name is not ``step``, because scripts may
#: report a metric ``step``.
_STEP = "fleetfit_step"


@suggests_arguments
class WandbCallback(Tracker):
    """A callback that logs each job as a run of Weights & Biases, with configuration, metrics, final status and model.

    A resumed job continues its run. If the server does not respond, the job is not delayed.

    Args:
        project: The project.
        mode: With ``"online"``, the data is sent while the job runs. With ``"offline"``, the data is written to
            ``folder``, and you send it later with ``wandb sync``.
        folder: The folder in which the folder ``wandb`` is created. The default is the working directory.
        entity: The user or team.
        model: Whether to log the model. A model is logged only if it is on this machine.
        **options: Options of :class:`~estimators.client.trackers.base.Tracker`.

    Raises:
        ConfigurationError: an argument is wrong, or wandb is not installed.
    """

    title = "Weights & Biases"
    library = "wandb"
    extra = "wandb"

    def __init__(
        self,
        project: str = "fleetfit",
        *,
        mode: str = "offline",
        folder: str | None = None,
        entity: str | None = None,
        model: bool = True,
        ranks: str = "first",
        patience: float = 30.0,
    ) -> None:
        super().__init__(ranks=ranks, patience=patience)
        if mode not in _MODES:
            raise ConfigurationError(unknown("WandbCallback(mode=…)", mode, _MODES))
        self._project = project
        self._mode = mode
        self._folder = user_folder(folder or ".")
        self._entity = entity
        self.logs_model = model

    def place(self) -> str:
        """Return a text that contains the mode, the entity and the project.

        In offline mode, the text also contains the folder.
        """
        return f"{self._mode} {self._entity} {self._project} {self._folder if self._mode == 'offline' else ''}"

    def open(self, job: TrainingJob, run: str | None, parent: str | None) -> _WandbRun:
        """Create a run for the job, or continue the job's existing run."""
        import wandb

        Path(self._folder).mkdir(parents=True, exist_ok=True)
        begun = wandb.init(
            project=self._project,
            entity=self._entity,
            id=run or job.name,  # a job's name is unique, so that its run is found even if the id was not stored
            name=job.name,
            group=parent,
            resume="allow",
            mode=self._mode,  # type: ignore[arg-type]
            dir=self._folder,
            config={**parameters_of(job), "fleetfit": facts_of(job)},
            reinit="create_new",
            # Without these settings, wandb would also collect data about this process, which only waits for the job.
            settings=wandb.Settings(
                console="off", disable_git=True, disable_code=True, disable_job_creation=True, silent=True,
                x_disable_stats=True, x_disable_meta=True,
            ),
        )  # fmt: skip
        begun.define_metric("*", step_metric=_STEP)
        return _WandbRun(begun, self.logs_model)

    def open_study(self, name: str, run: str | None) -> str | None:
        """Return the tuning job's name, which is the group of the trials' runs.

        Weights & Biases creates groups automatically.
        """
        return name


class _WandbRun(TrackedRun):
    """The Weights & Biases run of a job."""

    def __init__(self, run: Any, logs_model: bool) -> None:
        self._run = run
        self._logs_model = logs_model
        self.id = str(run.id)

    def log(self, points: Sequence[TrackedValue]) -> None:
        """Send values of metrics. The values of one step are sent together."""
        for step, together in itertools.groupby(points, key=lambda point: point.step):
            values: dict[str, float] = {}
            last = 0.0
            for point in together:
                values[point.name], last = point.value, point.time
            self._run.log({**values, _STEP: step, "_timestamp": last})

    def finish(self, status: str, model: Path | None) -> None:
        """Log the model if the callback logs models, and close the run."""
        if model is not None and self._logs_model:
            import wandb

            artifact = wandb.Artifact(f"model-{self.id}", type="model")
            artifact.add_file(str(model))
            self._run.log_artifact(artifact)
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "Completed" else 1)

    def __del__(self) -> None:
        # If the run has not been finished, write the values that have been logged.
        with contextlib.suppress(Exception):
            self._run.finish(exit_code=0, quiet=True)
