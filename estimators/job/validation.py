"""Validate a ``CreateTrainingJob`` request before the start of the job.

botocore's validator checks only types and required members. SageMaker also enforces the ``min``, ``max``, ``pattern``
and ``enum`` of botocore's model. This module checks types, members and limits by the model
(:mod:`estimators.job.service_model`). Then the module checks the few rules that the model cannot express. The table
:data:`LOCAL_RELAXATIONS` lists the exceptions for jobs that fleetfit runs itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from container.contract.frozen import dataclass
from container.contract.names import nearest, shown, unknown
from container.contract.rules import passable
from estimators.job import bounds, fleets, instances, service_model, shape_check
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.job.request import TrainingJobSpec

#: The number of characters of a wrong value that an error shows.
_SHOWN = 120

_PATH_MAX = 4096


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """An exception for jobs that fleetfit runs itself: values of a member that SageMaker does not allow.

    Attributes:
        path: The path of the member, with ``[]`` for the items of a list.
        allowed: A function that returns whether a value is allowed although the model forbids the value.
        remedy: A description of the allowed values, for errors.
    """

    path: str
    allowed: Callable[[str], bool]
    remedy: str


def _is_path_here(value: str) -> bool:
    path = value[len("file://") :] if value.startswith("file://") else value
    return path.startswith("/") and "\0" not in path and len(path) <= _PATH_MAX


_LOCATION = "s3://bucket/prefix, file:///folder or an absolute path"

#: All values that a request may have for fleetfit's own instance types, but not for SageMaker's ``ml.*`` types.
LOCAL_RELAXATIONS: tuple[Relaxation, ...] = (
    Relaxation(path="ResourceConfig.InstanceType", allowed=fleets.is_own, remedy="an instance type"),
    Relaxation(
        path="RoleArn", allowed=lambda role: 0 < len(role) <= 2048, remedy="any text (local jobs do not use the role)"
    ),
    Relaxation(path="InputDataConfig[].DataSource.S3DataSource.S3Uri", allowed=_is_path_here, remedy=_LOCATION),
    Relaxation(path="OutputDataConfig.S3OutputPath", allowed=_is_path_here, remedy=_LOCATION),
    Relaxation(path="CheckpointConfig.S3Uri", allowed=_is_path_here, remedy=_LOCATION),
)

#: The meaning of a member's pattern, for errors.
_REMEDIES: Mapping[str, str] = {
    "TrainingJobName": "letters, digits and hyphens, beginning and ending with a letter or digit, at most 63 of them",
    "RoleArn": "an ARN such as arn:aws:iam::123456789012:role/name",
    "InputDataConfig[].ChannelName": "letters, digits, dots, hyphens and underscores",
    "InputDataConfig[].DataSource.S3DataSource.S3Uri": "s3://bucket/prefix",
    "OutputDataConfig.S3OutputPath": "s3://bucket/prefix",
    "CheckpointConfig.S3Uri": "s3://bucket/prefix",
    "HyperParameters": "put long values into a file of a channel",
    "Environment key": "letters, digits and underscores, not beginning with a digit",
    "Environment": "put long values into a file of a channel",
}


#: Members of a request -> arguments of an estimator or of fit().
_ARGUMENTS = {
    "AlgorithmSpecification.ContainerArguments": "container_arguments",
    "AlgorithmSpecification.ContainerEntrypoint": "container_entry_point",
    "AlgorithmSpecification.MetricDefinitions": "metric_definitions",
    "AlgorithmSpecification.TrainingImage": "image_uri", "CheckpointConfig.LocalPath": "checkpoint_local_path",
    "CheckpointConfig.S3Uri": "checkpoint_s3_uri", "Environment": "environment", "HyperParameters": "hyperparameters",
    "OutputDataConfig.KmsKeyId": "output_kms_key", "OutputDataConfig.S3OutputPath": "output_path",
    "ResourceConfig.InstanceCount": "instance_count", "ResourceConfig.InstanceType": "instance_type",
    "ResourceConfig.KeepAlivePeriodInSeconds": "keep_alive_period_in_seconds",
    "ResourceConfig.TrainingPlanArn": "training_plan", "ResourceConfig.VolumeKmsKeyId": "volume_kms_key",
    "ResourceConfig.VolumeSizeInGB": "volume_size", "RetryStrategy.MaximumRetryAttempts": "max_retry_attempts",
    "RoleArn": "role", "StoppingCondition.MaxRuntimeInSeconds": "max_run",
    "StoppingCondition.MaxWaitTimeInSeconds": "max_wait", "Tags": "tags", "TrainingJobName": "job_name",
    "VpcConfig.SecurityGroupIds": "security_group_ids", "VpcConfig.Subnets": "subnets",
}  # fmt: skip
#: Matches a member at the beginning of a problem, which is a line or an item of a list.
_MEMBER = re.compile(rf"^((?:- )?)({'|'.join(map(re.escape, _ARGUMENTS))})\b(?!\.)", re.MULTILINE)
_CHANNEL = re.compile(r"\bInputDataConfig\[(\d+)\]((?:\.\w+)*)")


def check_spec(spec: TrainingJobSpec) -> None:
    """Validate a job and its strategy. See :func:`check_request`.

    Raises:
        ConfigurationError: the job is not valid.
    """
    check_request(spec.to_request())
    try:
        ranks_per_host = spec.ranks_per_host
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"distribution: {error}") from None
    problem = bounds.ranks_problem(spec.instance_count, ranks_per_host)
    if problem is not None:
        raise ConfigurationError(problem)


def in_arguments(message: str, spec: TrainingJobSpec) -> str:
    """Replace the names of the request's members in a message by the names of the user's arguments.

    For example, ``OutputDataConfig.S3OutputPath is 's3://'`` becomes ``output_path is 's3://'``.
    """

    def channel(match: re.Match[str]) -> str:
        place = int(match[1])
        name = spec.inputs[place].name if place < len(spec.inputs) else match[1]
        if match[2] == ".ChannelName":
            return "the name of a channel"
        return f"channel {name!r}" + (match[2] if match[2] != ".DataSource.S3DataSource.S3Uri" else "")

    named = _CHANNEL.sub(channel, message)
    return _MEMBER.sub(lambda match: match[1] + _ARGUMENTS[match[2]], named)


def check_request(request: Mapping[str, Any]) -> None:
    """Validate a ``CreateTrainingJob`` request.

    Args:
        request: The request in the form in which a client sends it. Times are seconds since the epoch, and all values
            have their JSON types.

    Raises:
        ConfigurationError: the request is not valid. The message has a line for each problem.
    """
    problems = list(find_problems(request))
    if len(problems) == 1:
        raise ConfigurationError(problems[0])
    if problems:
        raise ConfigurationError("\n".join(["the training job's request is not valid:", *(f"- {p}" for p in problems)]))


def find_problems(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a request. Each problem is one sentence."""
    found = list(_problems(service_model.ROOT_SHAPE, request, local=_is_relaxed(request)))
    yield from found
    if not found:
        yield from _rules(request)


def job_name_problem(name: Any) -> str | None:
    """Return a text that explains why a job's name is not valid. Return None if the name is valid."""
    if name == "last":
        return "'last' means the newest job in commands, so no job may have this name."
    return next(_problems("TrainingJobName", name, local=True, path="TrainingJobName"), None)


def known_instance_types() -> tuple[str, ...]:
    """Return all of fleetfit's own instance types and all instance types of SageMaker."""
    return (*fleets.OWN_TYPES, *service_model.load_shapes()["TrainingInstanceType"]["enum"])


def instance_type_problem(instance_type: Any) -> str | None:
    """Return a text that explains why an instance type is not valid. Return None if the type is valid."""
    if not isinstance(instance_type, str):
        return f"instance_type must be a string such as {fleets.DEFAULT!r}, got {shown(instance_type)}."
    if fleets.is_own(instance_type):
        return None  # without reading botocore's model, which takes time
    known = known_instance_types()
    if instance_type in known:
        return None
    lower = instance_type.lower()
    guess = lower if fleets.is_own(lower) else nearest(instance_type[:100], known)
    hint = f" Did you mean {guess!r}?" if guess is not None else ""
    names = ", ".join(repr(name) for name in instances.near(guess or instance_type[:100], known))
    more = f" and {len(known) - len(fleets.OWN_TYPES)} SageMaker types (ml.*)"
    return f"unknown instance_type {shown(instance_type)}.{hint} Allowed: {names}{more}."


def _problems(name: str, value: Any, *, local: bool, path: str = "") -> Iterator[str]:
    """Yield an error message for each problem of a value. If ``local`` is True, :data:`LOCAL_RELAXATIONS` apply."""
    relaxations = {item.path: item for item in LOCAL_RELAXATIONS} if local else {}
    steps = (("member", path),) if path else ()
    for problem in shape_check.find(service_model.load_shapes(), name, value, path, steps):
        relaxation = relaxations.get(problem.path)
        relaxed = relaxation is not None and isinstance(problem.value, str) and relaxation.allowed(problem.value)
        if not relaxed and problem.what not in ("unicode", "overflow"):
            yield _text(problem, relaxation)


_UNITS = {"list": "items", "map": "entries", "string": "characters"}


def _text(problem: shape_check.Problem, relaxation: Relaxation | None) -> str:
    what, value, limit, kind, path, steps = problem
    where = _where(steps)
    remedy = relaxation.remedy if relaxation is not None else _REMEDIES.get(path)
    if what == "type":
        return f"{where or 'the request'} must be {limit}, got {_show(value)}."
    if what == "missing":
        return f"{where} is missing."
    if what == "unknown":
        return f"{where or 'the request'}: {unknown('member', value, limit)}"
    if what == "enum":
        known = (*fleets.OWN_TYPES, *limit) if relaxation is not None else limit
        unknown_type = instance_type_problem(value) if path.endswith("InstanceType") else None
        return unknown_type or f"{where}: {unknown('value', value, known)}"
    if what == "pattern":
        return f"{where} is {_show(value)}; allowed: {remedy or f'text that matches {limit}'}."
    if what in ("small", "large"):
        bound = f"at least {limit} is needed" if what == "small" else f"at most {limit} is allowed"
        return f"{where} is {_show(value)}; {bound}."
    given = f" ({_show(value)})" if kind == "string" and value else ""
    advice = f"; {remedy}" if kind == "string" and remedy else ""
    bound = f"at least {limit} are needed" if what == "short" else f"at most {limit} are allowed"
    return f"{where} has {len(value)} {_UNITS[kind]}{given}; {bound}{advice}."


def _where(steps: tuple[tuple[str, Any], ...]) -> str:
    where = ""
    for step, name in steps:
        if step == "member":
            where += f".{name}" if where else name
        else:
            where += f": the name {_show(name)}" if step == "key" else f"[{name!r}]"
    return where


def _rules(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the violations of rules that botocore's model lacks: rules of SageMaker, and limits of fleetfit."""
    resources = request.get("ResourceConfig") or {}
    count = resources.get("InstanceCount")
    if count is not None and count < 1:
        yield f"ResourceConfig.InstanceCount is {count!r}; at least 1 is needed."
    elif count is not None and count > bounds.MAX_HOSTS:
        yield f"ResourceConfig.InstanceCount is {_show(count)}; at most {bounds.MAX_HOSTS:,} are possible."
    stopping = request.get("StoppingCondition") or {}
    for member, seconds in stopping.items():
        if isinstance(seconds, int) and seconds > bounds.MAX_SECONDS:
            yield f"StoppingCondition.{member} is {_show(seconds)}; at most {bounds.MAX_SECONDS:,} are possible."
    max_run, max_wait = stopping.get("MaxRuntimeInSeconds"), stopping.get("MaxWaitTimeInSeconds")
    if max_wait is not None and max_run is not None and max_wait < max_run:
        yield (
            f"StoppingCondition.MaxWaitTimeInSeconds (max_wait) is {max_wait}, which is less than MaxRuntimeInSeconds "
            f"(max_run), {max_run}; max_wait includes the run itself."
        )
    names = [channel.get("ChannelName") for channel in request.get("InputDataConfig") or ()]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"InputDataConfig: the channel {name!r} is given {names.count(name)} times; names must differ."
    for index, channel in enumerate(request.get("InputDataConfig") or ()):
        sources = [key for key, value in channel["DataSource"].items() if value is not None]
        if len(sources) != 1:
            yield f"InputDataConfig[{index}].DataSource must have one source, got {sources or 'none'}."
    for name, value in (request.get("Environment") or {}).items():
        try:
            passable(f"Environment[{name!r}]", value)
        except ConfigurationError as error:
            yield str(error)


def _is_relaxed(request: Mapping[str, Any]) -> bool:
    resources = request.get("ResourceConfig") if isinstance(request, Mapping) else None
    instance_type = resources.get("InstanceType") if isinstance(resources, Mapping) else None
    return isinstance(instance_type, str) and not instance_type.startswith("ml.")


def _show(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
