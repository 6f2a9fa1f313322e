"""Run an estimator's jobs as trials of Ray Tune. A job runs on the resources that Tune has reserved for its trial."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract.strategies import Elastic
from container.system import saved
from estimators.backends.ray.options import RayOptions
from estimators.client.callbacks import EventTail
from estimators.client.estimator import Estimator
from estimators.client.training_job import TrainingJob
from estimators.job.errors import ConfigurationError
from estimators.job.inputs import normalise_uri
from estimators.job.request import RunOptions

#: How long to wait for a checkpoint that is still being copied from the host that saved it, in seconds.
_COMING_S = 60.0
#: The interval at which a job's record is polled, in seconds.
_LOOK_S = 0.1
#: The time that the script of a trial gets for saving when Tune ends the trial, in seconds.
_GRACE_S = 5.0
#: Options of the backend that the user must not set, because the placement group of a trial determines them.
_OF_THE_TRIAL = ("address", "placement_group", "labels")


def trainable(estimator: Estimator, inputs: Any = None, *, metric: str) -> Any:
    """Return a trainable for ``ray.tune.Tuner``. Each trial runs a job of the estimator.

    Tune reserves a placement group for each trial: a bundle of one core for the trial itself, and one bundle for each
    host of the job. The hyperparameters that Tune chooses override the estimator's hyperparameters. Whenever the script
    reports a value of ``metric``, Tune receives the last values of all metrics of rank 0. The checkpoint of a trial is
    the newest checkpoint of the script's ``Checkpointer``. If Tune resumes a trial, or starts a trial as a copy of
    another one, the trial's job restores that checkpoint. When a trial ends, its job is stopped.

    Args:
        estimator: An estimator with ``instance_type="ray"``. fleetfit, the code and local data must exist on Ray's
            nodes.
        inputs: The data, as for ``fit()``.
        metric: The metric whose values cause reports to Tune. For example, use a metric that the script reports once
            per epoch.

    Returns:
        A subclass of ``ray.tune.Trainable`` with the resources that its trials need.

    Raises:
        ConfigurationError: the estimator's instance type is not ``"ray"``, its strategy is elastic, or it sets an
            option that the trial determines, such as the cluster's address or ``checkpoint_s3_uri``.
    """
    if not isinstance(estimator, Estimator):
        raise ConfigurationError(f"trainable() takes an estimator, got a {type(estimator).__name__}.")
    settings = estimator.settings
    if settings.instance_type != "ray":
        raise ConfigurationError(
            f"trainable(): trials of Ray Tune are jobs on Ray, and the estimator's instance_type is "
            f"{settings.instance_type!r}. Set instance_type to 'ray'."
        )
    strategy = settings.distribution
    if isinstance(strategy, Elastic):
        raise ConfigurationError(
            "trainable(): a trial has only the hosts of its placement group, and an elastic job needs more. For "
            "elastic trials, use HyperparameterTuner; for trainable(), choose a strategy that is not elastic."
        )
    if settings.checkpoint_s3_uri is not None:
        raise ConfigurationError("trainable(): Tune keeps the trials' checkpoints. Leave checkpoint_s3_uri= out.")
    given = (settings.run_options or RunOptions()).backend_options
    for name in _OF_THE_TRIAL:
        if name in given:
            raise ConfigurationError(f"trainable(): a trial's hosts are in its own placement group. Leave {name}= out.")
    options = RayOptions.of(given)
    from ray import tune

    class Trial(tune.Trainable):
        """A trial that runs a job of the estimator."""

        def setup(self, config: dict[str, Any]) -> None:
            self._trial = _Trial(found, data, config, metric)

        def step(self) -> dict[str, Any]:
            return self._trial.report()

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            self._trial.save(Path(checkpoint_dir))

        def load_checkpoint(self, checkpoint: Any) -> None:
            self._trial.load(Path(checkpoint))

        def cleanup(self) -> None:
            self._trial.close()

    # Each trial runs in a working folder of its own, where relative paths of the user would not work.
    found, data = _with_absolute_paths(estimator), _absolute(inputs)
    processes = strategy.ranks_per_host if strategy is not None else 1
    bundles = [{"CPU": 1.0}, *[options.bundle(processes)] * settings.instance_count]
    return tune.with_resources(Trial, tune.PlacementGroupFactory(bundles, strategy=options.strategy or "PACK"))


def _with_absolute_paths(estimator: Estimator) -> Estimator:
    found, settings = copy.copy(estimator), estimator.settings
    if settings.source_dir is not None:
        found.source_dir = normalise_uri(settings.source_dir)
    elif isinstance(settings.entry_point, str):
        found.entry_point = normalise_uri(settings.entry_point)
    return found


def _absolute(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _absolute(value) for name, value in inputs.items()}
    return normalise_uri(inputs) if isinstance(inputs, str | os.PathLike) else inputs


class _Trial:
    """The job of one trial, and the job's checkpoints.

    Args:
        estimator: The estimator that starts the job.
        inputs: The job's data.
        config: The trial's hyperparameters.
        metric: The metric whose values cause reports.
    """

    def __init__(self, estimator: Estimator, inputs: Any, config: Mapping[str, Any], metric: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fleetfit-trial-"))
        self._estimator = copy.copy(estimator)
        self._estimator.checkpoint_s3_uri = str(self._folder)
        self._estimator.set_hyperparameters(**config)
        self._inputs = inputs
        self._metric = metric
        self._job: TrainingJob | None = None
        self._values: dict[str, float] = {}
        self._pending: list[dict[str, Any]] = []
        #: The number of the newest checkpoint that the job has reported.
        self._saved = -1

    def report(self) -> dict[str, Any]:
        """Wait for the next value of the metric. Return the last values of all metrics of rank 0.

        Raises:
            TrainingJobError: the job failed.
            ConfigurationError: the job has ended without a value of the metric.
        """
        if self._job is None:
            self._job = self._estimator.fit(self._inputs, wait=False, logs=False)
            self._tail = EventTail(self._job.record)
        while not self._pending:
            over = self._job.status.is_terminal
            self._read()
            if over and not self._pending:
                self._job.wait(logs=False)  # raises the job's failure
                if self._metric not in self._values:
                    raise ConfigurationError(f"the trial's job has ended without reporting {self._metric!r}.")
                return {**self._values, "done": True}
            time.sleep(_LOOK_S)
        return self._pending.pop(0)

    def _read(self) -> None:
        while events := self._tail.read():
            for event in events:
                if event.kind == "checkpoint" and event.data.get("action") == "saved":
                    self._saved = max(self._saved, _serial(str(event.data["name"])))
                elif event.kind == "metric" and event.rank in (0, None):
                    self._values[str(event.data["name"])] = float(event.data["value"])
                    if event.data["name"] == self._metric:
                        self._pending.append(dict(self._values))

    def save(self, target: Path) -> None:
        """Copy the newest checkpoint to a folder. First wait until the checkpoint has arrived from the host that saved
        it.

        Args:
            target: The folder.
        """
        until = time.monotonic() + _COMING_S
        while self._saved > max(map(_serial, self._checkpoints()), default=-1) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        for name in sorted(self._checkpoints(), key=_serial, reverse=True):
            try:
                shutil.copytree(self._folder / name, target / name)
                break
            except (OSError, shutil.Error):  # the job has saved newer checkpoints meanwhile, and has removed this one
                shutil.rmtree(target / name, ignore_errors=True)
        (target / "fleetfit").touch()  # Tune rejects an empty folder

    def load(self, source: Path) -> None:
        """Set the checkpoint from which the trial's next job continues. If a job runs, stop it first.

        Args:
            source: The folder that contains the checkpoint.
        """
        self._stop()
        for path in source.iterdir():
            if saved.CHECKPOINT.fullmatch(path.name):
                shutil.copytree(path, self._folder / path.name, dirs_exist_ok=True)

    def close(self) -> None:
        """Stop the job and remove the folder of its checkpoints."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _stop(self) -> None:
        job, self._job = self._job, None
        if job is not None and not job.status.is_terminal:
            job.stop(wait=True, grace=_GRACE_S)
        self._pending.clear()

    def _checkpoints(self) -> list[str]:
        return [path.parent.name for path in self._folder.glob(f"*/{saved.MANIFEST}")]


def _serial(name: str) -> int:
    return int(name.split("-")[1]) if saved.CHECKPOINT.fullmatch(name) else -1
