"""Convert a tuning job to SageMaker's CreateHyperParameterTuningJob request, with pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from estimators.job.errors import UnsupportedError
from estimators.job.secrets import mask_request
from estimators.tuning.config import SAGEMAKER_STRATEGIES, TuningSpec
from estimators.tuning.trials import FLEET

#: The members that a tuning job's ``TrainingJobDefinition`` and a CreateTrainingJob request have in common.
_SHARED = (
    "AlgorithmSpecification",
    "CheckpointConfig",
    "EnableInterContainerTrafficEncryption",
    "EnableManagedSpotTraining",
    "EnableNetworkIsolation",
    "Environment",
    "InputDataConfig",
    "OutputDataConfig",
    "RetryStrategy",
    "RoleArn",
    "StoppingCondition",
    "VpcConfig",
)
#: The members of a trial's CreateTrainingJob request that the ``TrainingJobDefinition`` does not have.
_NOT_DEFINED = ("TrainingJobName", "HyperParameters", "Tags", "ExperimentConfig")

#: The hyperparameter in which SageMaker passes the objective to scripts. A trial's request must not contain it.
_OBJECTIVE = "_tuning_objective_metric"


def request_of(spec: TuningSpec, trial_request: Mapping[str, Any], *, masked: bool = True) -> dict[str, Any]:
    """Return the CreateHyperParameterTuningJob request for a tuning job.

    Args:
        spec: The spec of the search.
        trial_request: The CreateTrainingJob request of a trial.
        masked: Whether to replace values whose names look secret by ``***``.
    """
    trial = mask_request(trial_request) if masked else trial_request
    definition = {name: value for name, value in trial.items() if name not in _NOT_DEFINED}
    definition["StaticHyperParameters"] = trial.get("HyperParameters") or {}
    request = {
        "HyperParameterTuningJobName": spec.name,
        "HyperParameterTuningJobConfig": spec.to_config(),
        "TrainingJobDefinition": definition,
    }
    if spec.warm_start:
        request["WarmStartConfig"] = dict(spec.warm_start)
    return request


def trial_request_of(
    name: str, definition: Mapping[str, Any], tuning: TuningSpec, tags: Sequence[Mapping[str, str]] | None = None
) -> dict[str, Any]:
    """Return the CreateTrainingJob request that all trials of a tuning job have in common. The tuned hyperparameters
    are omitted.

    Args:
        name: The tuning job's name.
        definition: The tuning job's ``TrainingJobDefinition``.
        tuning: The spec of the search.
        tags: The tuning job's tags.
    """
    request = {member: definition[member] for member in _SHARED if definition.get(member) is not None}
    request["ResourceConfig"] = resources_of(definition)
    tuned = tuning.ranges
    static = definition.get("StaticHyperParameters") or {}
    request["HyperParameters"] = {key: value for key, value in static.items() if key not in tuned and key != _OBJECTIVE}
    request["TrainingJobName"] = name
    if tags:
        request["Tags"] = list(tags)
    return request


def resources_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``ResourceConfig`` of every trial. If the definition lists several instance types, the first one is
    used.
    """
    flexible = definition.get("HyperParameterTuningResourceConfig")
    if definition.get("ResourceConfig") is not None or flexible is None:
        return dict(definition.get("ResourceConfig") or {})
    first = (flexible.get("InstanceConfigs") or [flexible])[0]
    members = ("InstanceType", "InstanceCount", "VolumeSizeInGB")
    return {member: first[member] for member in members if member in first}


def check_managed(spec: TuningSpec, instance_type: str | None) -> None:
    """Raise an error if the spec uses a feature that the tuning jobs of a managed service do not have.

    Raises:
        UnsupportedError: the spec uses such a feature. The message says what to do instead.
    """
    where = f"instance_type {instance_type!r}"
    if spec.strategy not in SAGEMAKER_STRATEGIES:
        raise UnsupportedError(
            f"strategy {spec.strategy!r} on {where}: SageMaker's tuning jobs support only the strategies "
            f"{', '.join(SAGEMAKER_STRATEGIES)}. Use one of these strategies, or run the trials on your own hosts."
        )
    if spec.goal is not None:
        raise UnsupportedError(
            f"objective {spec.objective!r} on {where}: SageMaker's tuning jobs can only compare the last values "
            "of a metric. As the objective, give the name of a metric."
        )
    fleet = [name for name in spec.ranges if name.startswith(FLEET)]
    if fleet:
        raise UnsupportedError(
            f"add_fleet_ranges() on {where}: all trials of a SageMaker tuning job run on the same hosts. Leave out "
            f"{', '.join(fleet)}."
        )
    if spec.fleet is not None:
        raise UnsupportedError(
            f"shared_fleet on {where}: SageMaker does not move hosts between trials. Leave shared_fleet out."
        )
    if spec.max_failures is not None:
        raise UnsupportedError(f"max_failures={spec.max_failures} is not available on {where}: leave it out.")
    if spec.repeats:
        raise UnsupportedError(f"repeats=True is not available on {where}: leave it out.")
    if spec.reduction_factor != 3:
        raise UnsupportedError(
            f"reduction_factor={spec.reduction_factor} on {where}: SageMaker's Hyperband always uses 3. Leave it out."
        )
