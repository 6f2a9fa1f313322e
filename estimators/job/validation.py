"""Checks a ``CreateTrainingJob`` request before anything starts.

botocore's own validator looks at types and required members only; SageMaker also holds requests to the ``min``,
``max``, ``pattern`` and ``enum`` that botocore's model carries. All of them are checked here, from the model
(:mod:`estimators.job.service_model`), and then the few rules that the model cannot say. What is more liberal for jobs
that fleetfit runs itself is one table, :data:`LOCAL_RELAXATIONS`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from container.contract.names import nearest, shown, unknown
from container.contract.rules import passable
from estimators.job import bounds, fleets, instances, service_model
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.job.request import TrainingJobSpec

#: How much of an offending value an error shows, in characters.
_SHOWN = 120

_PATH_MAX = 4096

#: Java's character classes in the model's patterns, as Python writes them (inside of brackets).
_JAVA_CLASSES = {
    r"\p{Alnum}": "a-zA-Z0-9",
    r"\p{L}": r"\w",
    r"\p{N}": r"\w",
    r"\p{Z}": " \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relaxation:
    """Something that a job on this machine may say and one on SageMaker may not.

    Attributes:
        path: The member, with ``[]`` for the items of a list.
        allowed: Whether the value is fine although the model does not say so.
        remedy: What to say of a value that neither takes.
    """

    path: str
    allowed: Callable[[str], bool]
    remedy: str


def _is_path_here(value: str) -> bool:
    path = value[len("file://") :] if value.startswith("file://") else value
    return path.startswith("/") and "\0" not in path and len(path) <= _PATH_MAX


_LOCATION = "s3://bucket/prefix, file:///folder or an absolute path"

#: Everything in which a request for ``local*`` instance types may differ from SageMaker's.
LOCAL_RELAXATIONS: tuple[Relaxation, ...] = (
    Relaxation(path="ResourceConfig.InstanceType", allowed=fleets.is_own, remedy="an instance type"),
    Relaxation(
        path="RoleArn", allowed=lambda role: 0 < len(role) <= 2048, remedy="any text (local jobs do not use the role)"
    ),
    Relaxation(path="InputDataConfig[].DataSource.S3DataSource.S3Uri", allowed=_is_path_here, remedy=_LOCATION),
    Relaxation(path="OutputDataConfig.S3OutputPath", allowed=_is_path_here, remedy=_LOCATION),
    Relaxation(path="CheckpointConfig.S3Uri", allowed=_is_path_here, remedy=_LOCATION),
)

#: What the pattern of a member means, for errors.
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


def check_spec(spec: TrainingJobSpec) -> None:
    """Check a job; see :func:`check_request`. Its strategy is read too.

    Raises:
        ConfigurationError: something is wrong with it.
    """
    check_request(spec.to_request())
    try:
        strategy = spec.strategy
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"distribution: {error}") from None
    problem = bounds.ranks_problem(spec.instance_count, strategy.ranks_per_host if strategy is not None else 1)
    if problem is not None:
        raise ConfigurationError(problem)


def check_request(request: Mapping[str, Any]) -> None:
    """Check a ``CreateTrainingJob`` request.

    Args:
        request: As a client sends it, with epoch times and all values in their JSON types.

    Raises:
        ConfigurationError: everything that is wrong, a line each.
    """
    problems = list(find_problems(request))
    if len(problems) == 1:
        raise ConfigurationError(problems[0])
    if problems:
        raise ConfigurationError("\n".join(["the training job's request is not valid:", *(f"- {p}" for p in problems)]))


def find_problems(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a request, one sentence each."""
    checker = _Checker(service_model.load_shapes(), local=_is_relaxed(request))
    found = list(checker.check(request, service_model.ROOT_SHAPE, "", ""))
    yield from found
    if not found:
        yield from _rules(request)


def job_name_problem(name: Any) -> str | None:
    """What is wrong with a job's name, or None."""
    checker = _Checker(service_model.load_shapes(), local=True)
    return next(iter(checker.check(name, "TrainingJobName", "TrainingJobName", "TrainingJobName")), None)


def known_instance_types() -> tuple[str, ...]:
    """Every instance type: the local ones and SageMaker's."""
    return (*fleets.OWN_TYPES, *service_model.load_shapes()["TrainingInstanceType"]["enum"])


def instance_type_problem(instance_type: Any) -> str | None:
    """What is wrong with an instance type, or None."""
    if not isinstance(instance_type, str):
        return f"instance_type must be a string such as {fleets.DEFAULT!r}, got {shown(instance_type)}."
    if fleets.is_own(instance_type):
        return None  # without reading the model
    known = known_instance_types()
    if instance_type in known:
        return None
    guess = nearest(instance_type[:100], known)
    hint = f" Did you mean {guess!r}?" if guess is not None else ""
    names = ", ".join(repr(name) for name in instances.near(guess or instance_type[:100], known))
    more = f" and {len(known) - len(fleets.OWN_TYPES)} SageMaker types (ml.*)"
    return f"unknown instance_type {shown(instance_type)}.{hint} Allowed: {names}{more}."


class _Checker:
    """Walks a value along the shapes of the model."""

    def __init__(self, shapes: service_model.Shapes, *, local: bool) -> None:
        self._shapes = shapes
        self._relaxations = {item.path: item for item in LOCAL_RELAXATIONS} if local else {}

    def check(self, value: Any, name: str, path: str, where: str) -> Iterator[str]:
        """Yield the problems of a value.

        Args:
            value: The value.
            name: Name of its shape.
            path: The member without indices, for the tables.
            where: The member with indices, for errors.
        """
        shape = self._shapes[name]
        kind: str = shape["type"]
        if not _has_type(value, kind):
            yield f"{where or 'the request'} must be {_TYPES[kind][1]}, got {_show(value)}."
            return
        if kind == "structure":
            yield from self._structure(value, shape, path, where)
        elif kind == "list":
            yield from _length(len(value), shape, where, "items")
            for index, item in enumerate(value):
                yield from self.check(item, shape["member"]["shape"], f"{path}[]", f"{where}[{index}]")
        elif kind == "map":
            yield from _length(len(value), shape, where, "entries")
            for key, item in value.items():
                yield from self.check(key, shape["key"]["shape"], f"{path} key", f"{where}: the name {_show(key)}")
                yield from self.check(item, shape["value"]["shape"], path, f"{where}[{key!r}]")
        elif kind == "string":
            yield from self._string(value, shape, path, where)
        elif kind in _NUMBERS:
            yield from _range(value, shape, where)

    def _structure(self, value: Mapping[str, Any], shape: Mapping[str, Any], path: str, where: str) -> Iterator[str]:
        members: Mapping[str, Any] = shape["members"]
        dot = "." if path else ""
        for required in shape.get("required", ()):
            if value.get(required) is None:
                yield f"{where}{dot}{required} is missing."
        for member, item in value.items():
            if member not in members:
                yield f"{where or 'the request'}: {unknown('member', member, members)}"
            elif item is not None:
                yield from self.check(item, members[member]["shape"], f"{path}{dot}{member}", f"{where}{dot}{member}")

    def _string(self, value: str, shape: Mapping[str, Any], path: str, where: str) -> Iterator[str]:
        relaxation = self._relaxations.get(path)
        if relaxation is not None and relaxation.allowed(value):
            return
        allowed = shape.get("enum")
        if allowed is not None:
            if value not in allowed:
                known = (*fleets.OWN_TYPES, *allowed) if relaxation is not None else allowed
                yield (instance_type_problem(value) if path.endswith("InstanceType") else None) or (
                    f"{where}: {unknown('value', value, known)}"
                )
            return
        remedy = relaxation.remedy if relaxation is not None else _REMEDIES.get(path)
        too_long = list(_length(len(value), shape, where, "characters", value, remedy))
        yield from too_long
        pattern = model_pattern(shape.get("pattern"))
        if not too_long and pattern is not None and pattern.fullmatch(value) is None:
            what = remedy or f"text that matches {shape['pattern']}"
            yield f"{where} is {_show(value)}; allowed: {what}."


_NUMBERS = ("integer", "long", "float", "double")

#: Type of the model -> types of Python, how to call them.
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "structure": ((Mapping,), "a structure (a dict)"),
    "map": ((Mapping,), "a map (a dict)"),
    "list": ((list, tuple), "a list"),
    "string": ((str,), "a string"),
    "boolean": ((bool,), "True or False"),
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
}


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind][0])


def _length(
    size: int, shape: Mapping[str, Any], where: str, unit: str, value: Any = None, remedy: str | None = None
) -> Iterator[str]:
    low, high = shape.get("min", 0), shape.get("max")
    given = f" ({_show(value)})" if value else ""
    advice = f"; {remedy}" if remedy else ""
    if size < low:
        yield f"{where} has {size} {unit}{given}; at least {low} are needed{advice}."
    elif high is not None and size > high:
        yield f"{where} has {size} {unit}{given}; at most {high} are allowed{advice}."


def _range(value: float, shape: Mapping[str, Any], where: str) -> Iterator[str]:
    low, high = shape.get("min"), shape.get("max")
    if low is not None and value < low:
        yield f"{where} is {_show(value)}; at least {low} is needed."
    elif high is not None and value > high:
        yield f"{where} is {_show(value)}; at most {high} is allowed."


def _rules(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield what SageMaker also refuses and the model does not say."""
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


@functools.cache
def model_pattern(text: str | None) -> re.Pattern[str] | None:
    """Compile a pattern of the model; None when there is none."""
    if text is None or text == ".*":
        return None
    for java, python in _JAVA_CLASSES.items():
        text = text.replace(java, python)
    return re.compile(text)


def _show(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
