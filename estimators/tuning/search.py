"""Define the sampler, the pruner and the journal of an Optuna study. Only code that needs Optuna imports this
module.
"""

from __future__ import annotations

import itertools
import logging
import random
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import Trial, TrialState

from container.contract import hyperparameters as codec
from estimators.tuning import ranges
from estimators.tuning.config import TuningSpec

optuna.logging.set_verbosity(logging.WARNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

#: The number of unused points that are listed in order to choose a point at random.
_NEW_POINTS = 10_000
#: The number of trials that must have ended before trials are stopped because of the median.
_MEDIAN_OF = 4


class _OneWriter(JournalFileSymlinkLock):
    """A lock that does nothing, because the journal needs no lock.

    A lock file of Optuna would remain if its owner were killed. The record's lock already ensures that only one process
    opens the journal, and the kernel releases that lock even if the process is killed.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def open_study(journal: Path, spec: TuningSpec) -> optuna.Study:
    """Open a study. Create the study if it does not exist.

    Args:
        journal: The path of the study's journal. An incomplete last line, which a killed writer has left, is removed.
        spec: The spec of the search.
    """
    _cut_torn_line(journal)
    storage = JournalStorage(JournalFileBackend(str(journal), lock_obj=_OneWriter(str(journal))))
    study = optuna.create_study(
        storage=storage,
        study_name=spec.name,
        direction="maximize" if spec.maximize else "minimize",
        load_if_exists=True,
        pruner=_pruner(spec),
    )
    seed = spec.random_seed
    if seed is not None:  # after a restart, the study must not repeat the random numbers of its first trials
        seed = (seed + 7919 * len(study.get_trials(deepcopy=False))) % (1 << 31)
    study.sampler = _sampler(spec, seed)
    return study


def _sampler(spec: TuningSpec, seed: int | None) -> optuna.samplers.BaseSampler:
    if spec.strategy in ("Bayesian", "Hyperband"):
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(spec: TuningSpec) -> optuna.pruners.BasePruner:
    if spec.strategy == "ASHA":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=spec.min_resource, reduction_factor=spec.reduction_factor
        )
    if spec.strategy == "Hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=spec.min_resource,
            max_resource=spec.max_resource if spec.max_resource is not None else "auto",
            reduction_factor=spec.reduction_factor,
        )
    if spec.early_stopping_type == "Auto":
        return optuna.pruners.MedianPruner(n_startup_trials=_MEDIAN_OF, n_warmup_steps=1)
    return optuna.pruners.NopPruner()


def suggest(trial: Trial, parameter_ranges: Mapping[str, Any]) -> dict[str, str]:
    """Choose and return a trial's hyperparameters. If the trial already has hyperparameters, return these.

    Args:
        trial: The trial. The chosen hyperparameters are written into the journal.
        parameter_ranges: The request's ``ParameterRanges``.

    Returns:
        The hyperparameters as the strings that a job's request contains.
    """
    found: dict[str, str] = {}
    for name, kind, item in ranges.items(parameter_ranges):
        if kind == "Categorical":
            found[name] = trial.suggest_categorical(name, list(item["Values"]))
        elif kind == "Integer":
            low, high = int(item["MinValue"]), int(item["MaxValue"])
            log = ranges.is_logarithmic(item.get("ScalingType") or "Auto", low, high)
            found[name] = str(trial.suggest_int(name, low, high, log=log))
        else:
            found[name] = codec.encode_value(name, _float(trial, name, item))
    return found


def _float(trial: Trial, name: str, item: Mapping[str, Any]) -> float:
    low, high = float(item["MinValue"]), float(item["MaxValue"])
    scaling = item.get("ScalingType") or "Auto"
    if scaling == "ReverseLogarithmic":  # the distance of the value from 1 is searched on a logarithmic scale
        return 1.0 - trial.suggest_float(name, 1.0 - high, 1.0 - low, log=True)
    return trial.suggest_float(name, low, high, log=ranges.is_logarithmic(scaling, low, high))


def as_parameters(values: Mapping[str, str], parameter_ranges: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert the hyperparameters of a request to the parameters of the Optuna study.

    Return None if a hyperparameter is missing or out of its range.
    """
    found: dict[str, Any] = {}
    for name, kind, item in ranges.items(parameter_ranges):
        text = values.get(name)
        if text is None:
            return None
        if kind == "Categorical":
            if text not in item["Values"]:
                return None
            found[name] = text
            continue
        try:
            number = float(text)
        except ValueError:
            return None
        if not float(item["MinValue"]) <= number <= float(item["MaxValue"]):
            return None
        if kind == "Integer":
            found[name] = int(number)
        else:
            found[name] = 1.0 - number if item.get("ScalingType") == "ReverseLogarithmic" else number
    return found


def enqueue_grid_point(study: optuna.Study, spec: TuningSpec) -> None:
    """Enqueue the first point of the grid that has no trial yet. Do nothing if a trial is already enqueued."""
    trials = study.get_trials(deepcopy=False)
    if any(trial.state == TrialState.WAITING for trial in trials):
        return
    taken = [trial.params or trial.system_attrs.get("fixed_params", {}) for trial in trials]
    point = next((point for point in spec.points() if point not in taken), None)
    if point is not None:
        study.enqueue_trial(point)


def enqueue_new_point(
    study: optuna.Study, parameter_ranges: Mapping[str, Any], taken: Collection[tuple[str, ...]], draw: random.Random
) -> None:
    """Enqueue a random point that has no trial yet.

    The search space must be discrete, and at least one point must have no trial.

    Args:
        study: The study.
        parameter_ranges: The request's ``ParameterRanges``.
        taken: The points that have a trial. Each point is a tuple of its values as strings, in the order of the ranges.
        draw: The source of random numbers.
    """
    choices = ranges.choices(parameter_ranges) or {}
    points = itertools.islice(itertools.product(*choices.values()), len(taken) + _NEW_POINTS)
    new = [point for point in points if tuple(map(str, point)) not in taken]
    study.enqueue_trial(dict(zip(choices, draw.choice(new), strict=True)))


def _cut_torn_line(journal: Path) -> None:
    try:
        with journal.open("r+b") as file:
            data = file.read()
            if not data.endswith(b"\n"):
                file.truncate(data.rfind(b"\n") + 1)
    except FileNotFoundError:
        pass


def importances(spec: TuningSpec, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the fraction of the objective's variance that each hyperparameter explains, from 0 to 1.

    Args:
        spec: The study's spec.
        rows: The rows of the study's trials.

    Returns:
        The fractions by the names of the hyperparameters. Empty if less than four trials have completed, or if all
        completed trials have the same value or the same hyperparameters.
    """
    study = optuna.create_study(direction="maximize" if spec.maximize else "minimize")
    values = []
    for row in rows:
        parameters = as_parameters(row["values"], spec.parameter_ranges)
        if row["state"] == "Completed" and parameters is not None:
            study.enqueue_trial(parameters)
            trial = study.ask()
            suggest(trial, spec.parameter_ranges)
            study.tell(trial, row["value"])
            values.append(row["value"])
    if len(values) < 4 or len(set(values)) < 2:
        return {}
    try:
        found = optuna.importance.get_param_importances(study)
    except (ValueError, RuntimeError):  # all trials have the same hyperparameters
        return {}
    return {name: float(share) for name, share in found.items()}
