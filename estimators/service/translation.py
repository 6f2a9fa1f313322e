"""Convert a client's CreateTrainingJob request to a job for a local backend, or refuse the request with the reason.

Hyperparameters, environment and channels are not changed. The instance type is replaced by a local type, and the image
by an image of this machine.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.frozen import dataclass
from container.contract.names import unknown
from container.contract.rules import passable
from container.system.host_machine import gpu_count
from container.system.locations import is_s3
from estimators import backends
from estimators.client import checks
from estimators.job import fleets, instances, validation
from estimators.job.errors import ConfigurationError, FleetfitError, UnsupportedError
from estimators.job.metrics import parse_metric_definitions
from estimators.job.queueing import check_name
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.service.errors import ServiceError, invalid

#: Members that request a feature of AWS that is not available here and that the job may need, with the reason.
REFUSED: Mapping[str, str] = {
    "AlgorithmSpecification.AlgorithmName": "SageMaker's own and the marketplace's algorithms exist on AWS only",
    "DebugRuleConfigurations": "SageMaker Debugger's rules run on AWS",
    "EnableInterContainerTrafficEncryption": "hosts of one machine talk over its own interfaces, unencrypted",
    "InfraCheckConfig": "SageMaker checks its own instances; `fleetfit doctor` checks this machine",
    "MlflowConfig": "SageMaker's MLflow is a service of AWS",
    "ModelPackageConfig": "the model registry is a service of AWS",
    "OutputDataConfig.KmsKeyId": "keys of AWS KMS encrypt AWS's storage only",
    "ProfilerRuleConfigurations": "SageMaker Profiler's rules run on AWS",
    "RemoteDebugConfig": "remote debugging opens a container of AWS",
    "ResourceConfig.InstanceGroups": "heterogeneous clusters are not supported yet",
    "ResourceConfig.InstancePlacementConfig": "placement is for instances of AWS",
    "ResourceConfig.InstancePreferences": "one machine has no choice of instances",
    "ResourceConfig.TrainingPlanArn": "training plans reserve capacity of AWS",
    "ResourceConfig.VolumeKmsKeyId": "keys of AWS KMS encrypt AWS's volumes only",
    "ServerlessJobConfig": "serverless training is a service of AWS",
    "SessionChainingConfig": "session tags belong to AWS roles",
    "TensorBoardOutputConfig": "event files are not copied while a job runs; write them below SM_OUTPUT_DATA_DIR",
    "VpcConfig": "a VPC exists on AWS only",
}

#: Members that are also refused if jobs run as processes without containers, with the reason.
REFUSED_FOR_PROCESSES: Mapping[str, str] = {
    "AlgorithmSpecification.ContainerArguments": "processes of this machine have no container",
    "AlgorithmSpecification.ContainerEntrypoint": "processes of this machine have no container",
    "EnableNetworkIsolation": "processes of this machine share its network",
}

#: Hyperparameters of the SDK 2.x that select launchers that are not available here.
_FOREIGN_LAUNCHERS = {
    "sagemaker_distributed_dataparallel_enabled": "smdistributed's data parallel library is part of AWS's images",
    "sagemaker_distributed_modelparallel_enabled": "smdistributed's model parallel library is part of AWS's images",
    "sagemaker_pytorch_xla_multi_worker_enabled": "PyTorch/XLA is not available",
    "sagemaker_distribution_instance_groups": "heterogeneous clusters are not supported yet",
}

#: Patterns of the images that fleetfit's own image replaces. The pairs in :attr:`Local.images` take precedence.
DEFAULT_IMAGES = ("*/tensorflow-training:*", "*/sagemaker-tensorflow-scriptmode:*", "*/sagemaker-tensorflow:*")

BACKENDS = ("process", "docker")


@dataclass(frozen=True, kw_only=True)
class Local:
    """The backend for an endpoint's jobs, and the backend's settings.

    Attributes:
        backend: The name of the backend: ``process`` or ``docker``.
        images: Pairs of a pattern and an image of this machine, which replaces images whose names match the pattern.
            The first matching pattern is used.
        without: The members of :data:`REFUSED` that are accepted and ignored.
        python: The path of the interpreter for processes.
        queue: The name of the machine-wide queue in which jobs wait. None if jobs wait in no such queue.
    """

    backend: str = "process"
    images: tuple[tuple[str, str], ...] = ()
    without: frozenset[str] = frozenset()
    python: str = dataclasses.field(default_factory=lambda: sys.executable)
    queue: str | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            check_name("queue", self.queue)
        if self.backend not in BACKENDS:
            raise ConfigurationError(unknown("backend", self.backend, BACKENDS))
        for member in self.without:
            if member not in REFUSED and member not in REFUSED_FOR_PROCESSES:
                raise ConfigurationError(unknown("member", member, sorted({*REFUSED, *REFUSED_FOR_PROCESSES})))

    @property
    def refused(self) -> dict[str, str]:
        """Return the members that are refused, with the reason for each."""
        both = {**REFUSED, **(REFUSED_FOR_PROCESSES if self.backend == "process" else {})}
        return {member: why for member, why in both.items() if member not in self.without}

    def image(self, name: str) -> str:
        """Return the local image that replaces the image ``name`` in a client's request."""
        from estimators.backends.images.toolkit import IMAGE

        for pattern, image in (*self.images, *((pattern, IMAGE) for pattern in DEFAULT_IMAGES)):
            if fnmatch.fnmatchcase(name, pattern):
                return image
        return name

    def instance_type(self, asked: str) -> str:
        """Return the local instance type that replaces a requested ``ml.*`` type."""
        if not asked.startswith("ml."):
            return asked
        if self.backend == "process":
            return fleets.PROCESSES
        return fleets.GPU_CONTAINERS if instances.gpus(asked) and gpu_count() else fleets.CONTAINERS


def translate(request: Mapping[str, Any], local: Local) -> tuple[TrainingJobSpec, JobOptions]:
    """Convert a request to a job for a local backend, and validate the job.

    Args:
        request: A CreateTrainingJob request that was validated with the service model.
        local: The backend for jobs, and the backend's settings.

    Raises:
        ServiceError: the request is not valid, or requests a feature that is not available here.
    """
    asked = {member: why for member, why in local.refused.items() if _asked_for(request, member)}
    if asked:
        texts = [f"{member} is not available on a fleetfit endpoint: {why}." for member, why in asked.items()]
        if not asked.keys() <= REFUSED_FOR_PROCESSES.keys():
            texts.append("(`fleetfit serve --without MEMBER` accepts such jobs and runs them without this member.)")
        if asked.keys() & REFUSED_FOR_PROCESSES.keys():
            texts.append("(`fleetfit serve --backend docker` runs jobs in containers of this machine.)")
        raise invalid(" ".join(texts))
    parameters = dict(request.get("HyperParameters") or {})
    for name, why in _FOREIGN_LAUNCHERS.items():
        if parameters.get(name, "false").strip('"').lower() not in ("false", "null", "", "[]"):
            raise invalid(f"hyperparameter {name!r}: {why}.")
    try:
        for what in ("HyperParameters", "Environment"):
            for name, value in (request.get(what) or {}).items():
                passable(f"{what}[{name!r}]", name)
                passable(f"{what}[{name!r}]", value)
        spec = _spec(_without(request, local), local)
        options = JobOptions(
            backend=spec.instance_type,
            python=local.python,
            warnings=tuple(_warnings(request, local)),
            asked_instance_type=request["ResourceConfig"]["InstanceType"],
            queue=local.queue,
        )
        _check(spec, options)
    except ServiceError:
        raise
    except (FleetfitError, ValueError) as error:
        raise invalid(str(error)) from error
    return spec, options


def _spec(request: Mapping[str, Any], local: Local) -> TrainingJobSpec:
    resources = request.get("ResourceConfig") or {}
    if not resources.get("InstanceType"):
        raise invalid("ResourceConfig.InstanceType is missing.")
    algorithm = dict(request.get("AlgorithmSpecification") or {})
    if not algorithm.get("TrainingImage"):
        raise invalid("AlgorithmSpecification.TrainingImage is missing.")
    instance_type = local.instance_type(resources["InstanceType"])
    if instance_type not in fleets.FLEETS:
        raise invalid(unknown("instance type", instance_type, fleets.FLEETS))
    containers = fleets.capabilities(instance_type).containers
    if containers:
        algorithm["TrainingImage"] = local.image(algorithm["TrainingImage"])
    spec = TrainingJobSpec.from_request(
        {
            **request,
            "AlgorithmSpecification": algorithm,
            "ResourceConfig": {**resources, "InstanceType": instance_type},
        }
    )
    if spec.program is None and not containers and not fleets.capabilities(instance_type).simulated:
        raise invalid(
            "the job has neither a hyperparameter 'sagemaker_program' nor a variable SAGEMAKER_PROGRAM. The image "
            "has the program to run (an algorithm's image, or the SDK 3.x's ModelTrainer), but this endpoint runs "
            "jobs as bare processes. `fleetfit serve --backend docker` runs jobs in containers."
        )
    place = spec.submit_directory
    if resources["InstanceType"].startswith("ml.") and not containers and place and not is_s3(place):
        raise invalid(
            f"hyperparameter 'sagemaker_submit_directory': {place[:200]!r} is a path in a container, but this endpoint "
            "runs jobs as bare processes. Give an archive s3://…/sourcedir.tar.gz, or use `fleetfit serve --backend "
            "docker`."
        )
    if spec.output.compression == "NONE":
        raise UnsupportedError(
            "OutputDataConfig.CompressionType 'NONE': outputs are packed as model.tar.gz and output.tar.gz here."
        )
    return spec


def _check(spec: TrainingJobSpec, options: JobOptions) -> None:
    validation.check_spec(spec)
    parse_metric_definitions([{"Name": item.name, "Regex": item.regex} for item in spec.algorithm.metric_definitions])
    if fleets.capabilities(spec.instance_type).simulated:
        return
    checks.check_local(spec)
    backends.load(options.backend).check(spec, options)


def _warnings(request: Mapping[str, Any], local: Local) -> Iterable[str]:
    asked = str((request.get("ResourceConfig") or {}).get("InstanceType") or "")
    if asked.startswith("ml.") and instances.gpus(asked) and not gpu_count():
        yield f"{asked} has {instances.gpus(asked)} GPU(s), but this machine has none: the job runs on CPUs."
    for member in sorted(local.without):
        if _asked_for(request, member):
            yield f"{member} was requested, but the job runs without it."


def _asked_for(request: Mapping[str, Any], member: str) -> bool:
    """Return whether a request contains a member with an effect.

    Empty values, ``False``, and structures whose switches are all off have no effect.
    """
    value: Any = request
    for part in member.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping) and value and all(item in (None, False) for item in value.values()):
        return False  # for example {"EnableInfraCheck": False}
    return value not in (None, "", False, {}, [])


def _without(request: Mapping[str, Any], local: Local) -> dict[str, Any]:
    """Return the request without the members that the endpoint ignores."""
    kept: dict[str, Any] = dict(request)
    for member in local.without:
        first, _, second = member.partition(".")
        if second and isinstance(kept.get(first), Mapping):
            kept[first] = {name: value for name, value in kept[first].items() if name != second}
        elif not second:
            kept.pop(first, None)
    return kept
