"""Run an estimator's jobs as trials of Ray Tune: on a trial's own placement group, with its metrics and checkpoints."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.wire import Event
from container.system import saved
from estimators.backends.ray.options import STRATEGIES, RayOptions
from estimators.client.callbacks import Callback
from estimators.client.estimator import Estimator
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob

#: How long a checkpoint may be on its way from the host that has saved it, in seconds.
_COMING_S = 60.0


def trainable(estimator: Estimator, inputs: Any = None, *, metric: str) -> Any:
    """Return a trainable for ``ray.tune.Tuner``: each trial is a job of an estimator.

    A trial's placement group has a bundle of one core for the trial itself, and one for each host. Its hyperparameters
    are the estimator's and, over these, the trial's. Whenever rank 0 has reported the metric, all of its metrics are
    reported to Tune, with the checkpoints of the script's ``Checkpointer`` if there are new ones: of these a trial
    that goes on, or begins with another one's, restores the newest. A trial that Tune ends has its job stopped.

    Args:
        estimator: The estimator, of ``instance_type="ray"``; fleetfit has to be on the nodes.
        inputs: As for ``fit()``.
        metric: The metric whose every value is a report, such as one that comes at the end of each epoch.

    Returns:
        A function with the resources that its trials need.

    Raises:
        ConfigurationError: the estimator is for another instance type, or has a cluster or a folder for checkpoints of
            its own.
    """
    settings = estimator.settings
    if settings.instance_type != "ray":
        raise ConfigurationError(
            f"trainable(): trials of Ray Tune are jobs on Ray; the estimator's instance_type is "
            f"{settings.instance_type!r}, set it to 'ray'."
        )
    if settings.checkpoint_s3_uri is not None:
        raise ConfigurationError("trainable(): Tune keeps the trials' checkpoints; leave checkpoint_s3_uri= out.")
    options = RayOptions.of((settings.run_options or RunOptions()).backend_options)
    for name in ("address", "placement_group"):
        if getattr(options, name) is not None:
            raise ConfigurationError(f"trainable(): a trial's hosts are in its own placement group; leave {name}= out.")
    from ray import tune

    def trial(config: Mapping[str, Any]) -> None:
        """Train with a trial's hyperparameters."""
        _run_trial(estimator, inputs, config, metric)

    processes = settings.distribution.ranks_per_host if settings.distribution is not None else 1
    bundles = [{"CPU": 1.0}, *[options.bundle(processes)] * settings.instance_count]
    strategy = options.strategy or STRATEGIES[-2]
    return tune.with_resources(trial, tune.PlacementGroupFactory(bundles, strategy=strategy))


def _run_trial(estimator: Estimator, inputs: Any, config: Mapping[str, Any], metric: str) -> None:
    from ray import tune

    with tempfile.TemporaryDirectory(prefix="fleetfit-trial-") as folder:
        if (given := tune.get_checkpoint()) is not None:
            given.to_directory(folder)
        trial = copy.copy(estimator)
        trial.checkpoint_s3_uri = folder
        trial.set_hyperparameters(**config)
        trial.fit(inputs, logs=False, callbacks=[_Reporting(metric, Path(folder), tune.report, tune.Checkpoint)])


class _Reporting(Callback):
    """Reports what rank 0 reports.

    Args:
        metric: Whose values are reports.
        folder: Where the job's checkpoints are.
        report: Tune's function; it ends the thread of a trial that is to end, and with that ``fit()`` and the job.
        checkpoint: Tune's class.
    """

    def __init__(self, metric: str, folder: Path, report: Callable[..., None], checkpoint: Any) -> None:
        self._metric = metric
        self._folder = folder
        self._report = report
        self._checkpoint = checkpoint
        self._values: dict[str, float] = {}
        self._saved: str | None = None

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Report at each value of the metric."""
        if event.kind == "checkpoint" and event.data.get("action") == "saved":
            self._saved = str(event.data["name"])
        if event.kind != "metric" or event.rank not in (0, None):
            return
        self._values[str(event.data["name"])] = float(event.data["value"])
        if event.data["name"] == self._metric:
            checkpoint = self._checkpoint.from_directory(str(self._folder)) if self._has_come() else None
            self._report(dict(self._values), checkpoint=checkpoint)

    def _has_come(self) -> bool:
        """Wait until the last checkpoint is here; return whether there is a new one."""
        if self._saved is None:
            return False
        manifest, until = self._folder / self._saved / saved.MANIFEST, time.monotonic() + _COMING_S
        while not manifest.exists() and time.monotonic() < until:
            time.sleep(0.05)
        self._saved = None
        return manifest.exists()
