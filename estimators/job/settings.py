"""The constructor's arguments as one value that checks itself.

Every check that needs nothing but the arguments is here, so that a mistake is refused where it is made: in the
constructor. What depends on the files of this machine is checked by ``fit()`` and ``plan()``.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.names import shown, unknown
from container.contract.strategies import Distribution, Mirrored, parse_distribution
from estimators.job import arguments, bounds, fleets, instances, validation
from estimators.job.errors import ConfigurationError
from estimators.job.failure_policy import RETRIES
from estimators.job.inputs import normalise_uri
from estimators.job.metrics import parse_metric_definitions
from estimators.job.request import MetricDefinition, RunOptions, Tag

_DAY = 24 * 60 * 60
_INPUT_MODES = ("File", "Pipe", "FastFile")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BASE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-]*")

#: SageMaker's limits, as its model has them (HyperParameters, HyperParameterValue, HyperParameterKey).
_MAX_HYPERPARAMETERS = 100
_MAX_VALUE = 2500
_MAX_NAME = 256
#: Linux's limits: bytes of a path, characters between its slashes.
_MAX_PATH = 4096
_MAX_PART = 255
#: A number of so many digits is repeated in an error's remedy.
_MAX_NUMBER = 25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What an estimator was told, by the names and with the defaults of the SageMaker SDK 2.x.

    Attributes are documented in :class:`estimators.client.estimator.Estimator`. Lists become tuples, dicts are copied,
    ``distribution`` is parsed, paths and URIs are kept as given.
    """

    role: str | None = None
    instance_count: int = 1
    instance_type: str = fleets.DEFAULT
    keep_alive_period_in_seconds: int | None = None
    volume_size: int = 30
    volume_kms_key: str | None = None
    training_plan: str | None = None
    instance_placement_config: Mapping[str, Any] | None = None
    entry_point: str | Callable[..., Any] | None = None
    source_dir: str | None = None
    dependencies: tuple[str, ...] = ()
    code_location: str | None = None
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    container_log_level: int = logging.INFO
    container_entry_point: tuple[str, ...] | None = None
    container_arguments: tuple[str, ...] | None = None
    image_uri: str | None = None
    framework_version: str | None = None
    py_version: str | None = None
    training_repository_access_mode: str | None = None
    training_repository_credentials_provider_arn: str | None = None
    input_mode: str = "File"
    model_uri: str | None = None
    model_channel_name: str = "model"
    output_path: str | None = None
    output_kms_key: str | None = None
    disable_output_compression: bool = False
    model_dir: str | bool | None = None
    max_run: int = _DAY
    use_spot_instances: bool = False
    max_wait: int | None = None
    max_retry_attempts: int | None = None
    checkpoint_s3_uri: str | None = None
    checkpoint_local_path: str | None = None
    metric_definitions: tuple[MetricDefinition, ...] = ()
    enable_sagemaker_metrics: bool | None = None
    enable_remote_debug: bool | None = None
    subnets: tuple[str, ...] | None = None
    security_group_ids: tuple[str, ...] | None = None
    encrypt_inter_container_traffic: bool | None = None
    enable_network_isolation: bool | None = None
    enable_infra_check: bool | None = None
    enable_session_tag_chaining: bool | None = None
    distribution: Distribution | None = None
    base_job_name: str | None = None
    sagemaker_session: Any = None
    tags: tuple[Tag, ...] = ()
    capture_limit: int = 10_000_000
    hang_timeout: float | None = None
    run_options: RunOptions = dataclasses.field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        self._normalise()
        self._check_types()
        self._check_place()
        self._set("_encoded", _encode_hyperparameters(self.hyperparameters, plain=self.is_plain))
        self._check_arguments()
        _check_environment(self.environment)
        _check_session(self.sagemaker_session)
        if self.base_job_name is not None and not _BASE_NAME.fullmatch(self.base_job_name):
            raise ConfigurationError(
                f"base_job_name {shown(self.base_job_name)}: a job's name may only have letters, digits and hyphens, "
                "and must begin with a letter or digit."
            )

    @property
    def capabilities(self) -> fleets.Capabilities:
        """What the hosts are like that it asks for."""
        return fleets.capabilities(self.instance_type)

    @property
    def encoded_hyperparameters(self) -> dict[str, str]:
        """The user's hyperparameters as texts: JSON, or ``str()`` of them where the settings are plain."""
        encoded: dict[str, str] = self.__dict__["_encoded"]
        return dict(encoded)

    @property
    def is_plain(self) -> bool:
        """Whether the image brings its own entry point, and gets hyperparameters as they are written."""
        return self.image_uri is not None and self.entry_point is None and self.source_dir is None

    @property
    def detached(self) -> bool:
        """Whether the job goes on without this machine: at a managed service, or with a dispatcher."""
        return self.capabilities.managed or self.run_options.dispatcher is not None

    @property
    def region(self) -> str | None:
        """The AWS region of the options, of the session or of the environment, if there is one."""
        chosen = self.run_options.backend_options.get("region") if self.capabilities.managed else None
        session = self.sagemaker_session
        region = chosen or getattr(session, "boto_region_name", None) or getattr(session, "region_name", None)
        return region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _normalise(self) -> None:
        for name in _LISTS:
            self._set(name, _texts(name, getattr(self, name)))
        for name in ("hyperparameters", "environment"):
            self._set(name, _dict(name, getattr(self, name)))
        for name in _PATHS:
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                self._set(name, os.fspath(value))
        model_dir: Any = self.model_dir
        if isinstance(model_dir, os.PathLike):
            self._set("model_dir", os.fspath(model_dir))
        self._set("distribution", parse_distribution(self.distribution))
        self._set("tags", _parse_tags(self.tags))
        self._set(
            "metric_definitions",
            tuple(
                MetricDefinition(name=item.name, regex=item.regex)
                for item in parse_metric_definitions(_given_metrics(self.metric_definitions))
            ),
        )

    def _check_types(self) -> None:
        for name, (low, high) in _COUNTS.items():
            _check_count(name, getattr(self, name), low, high)
        problem = bounds.ranks_problem(
            self.instance_count, 1 if self.distribution is None else self.distribution.ranks_per_host
        )
        if problem is not None:
            raise ConfigurationError(problem)
        for name in _OPTIONAL_COUNTS:
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), *_OPTIONAL_COUNTS[name])
        for name in _FLAGS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise ConfigurationError(f"{name} must be True or False, got {shown(value)}.")
        for name in (*_PATHS, *_TEXTS):
            value = getattr(self, name)
            if name == "entry_point" and callable(value):
                continue
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigurationError(f"{name} must be a string, got {shown(value)}.")
            _check_text(name, value, path=name in _PATHS)
        if self.model_dir is not None and self.model_dir is not False and not isinstance(self.model_dir, str):
            raise ConfigurationError(
                "model_dir must be a path, False (to leave it out) or None (for the default), "
                f"got {shown(self.model_dir)}."
            )
        _check_text("model_dir", self.model_dir, path=True)
        if self.input_mode not in _INPUT_MODES:
            raise ConfigurationError(unknown("input_mode", self.input_mode, _INPUT_MODES))
        hang = self.hang_timeout
        if hang is not None and not (bounds.is_seconds(hang) and hang > 0):
            raise ConfigurationError(
                f"hang_timeout must be a number of seconds above 0 and at most {bounds.MAX_SECONDS:,}, or None; "
                f"got {shown(hang)}."
            )
        if not isinstance(self.run_options, RunOptions):
            raise ConfigurationError(f"run_options must be a RunOptions(…), got {shown(self.run_options)}.")
        if self.run_options.backend not in (RunOptions().backend, self.instance_type):
            raise ConfigurationError(
                f"run_options: backend={shown(self.run_options.backend)} contradicts "
                f"instance_type={shown(self.instance_type)}, which selects the backend. Leave backend out."
            )

    def _check_place(self) -> None:
        problem = validation.instance_type_problem(self.instance_type)
        if problem is not None:
            raise ConfigurationError(problem)
        if (self.subnets is None) != (self.security_group_ids is None):
            missing = "security_group_ids" if self.security_group_ids is None else "subnets"
            raise ConfigurationError(f"{missing} is missing: a VPC needs both subnets and security_group_ids.")
        if isinstance(self.distribution, Mirrored) and self.instance_count > 1:
            raise ConfigurationError(self.distribution.one_host_only(self.instance_count))
        self._check_limits()
        if not self.capabilities.managed:
            arguments.refuse_locally(
                {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, self.instance_type
            )
            self._check_local()
            return
        slots = instances.slots(self.instance_type)
        gpus = instances.gpus(self.instance_type)
        if isinstance(self.distribution, Mirrored) and gpus and (self.distribution.devices or 0) > gpus:
            raise ConfigurationError(
                f"Mirrored(devices={self.distribution.devices}) is more than the {gpus} GPUs of {self.instance_type}."
            )
        ranks = self.distribution.ranks_per_host if self.distribution is not None else 1
        if slots is not None and ranks > slots:
            unit = "GPUs" if gpus else "vCPUs"
            raise ConfigurationError(
                f"processes_per_host={ranks} is more than the {slots} slots of {self.instance_type} ({slots} {unit}): "
                "use fewer processes per host, or a larger instance type."
            )

    def _check_arguments(self) -> None:
        """See that there is a script for them, and that they can travel."""
        if not self.arguments:
            return
        if callable(self.entry_point):
            raise ConfigurationError(
                "arguments are for scripts only, but entry_point is a function. Use hyperparameters instead."
            )
        if self.is_plain:
            raise ConfigurationError(
                "arguments are for scripts only, but the image runs its own program. Give the script as entry_point, "
                "or use container_arguments."
            )
        problem = codec.conflict(codec.decode(self.encoded_hyperparameters), self.arguments)
        if problem is not None:
            raise ConfigurationError(
                f"{problem}. Set the option either in arguments or in hyperparameters, not in both."
            )
        size = len(codec.encode_value("arguments", list(self.arguments)))
        if size > _MAX_VALUE:
            raise ConfigurationError(
                f"arguments have {size} characters as JSON; SageMaker takes at most {_MAX_VALUE}. Put long values "
                "into a file of a channel."
            )

    def _check_limits(self) -> None:
        """How often and how long it may be tried."""
        if self.max_wait is not None and not self.use_spot_instances:
            raise ConfigurationError("max_wait is for spot instances only: also set use_spot_instances=True.")
        if self.max_wait is not None and self.max_wait < self.max_run:
            raise ConfigurationError(
                f"max_wait={self.max_wait} is less than max_run={self.max_run}, but max_wait includes the run itself."
            )
        policy, market = self.run_options.failure_policy, self.run_options.spot_market
        if self.max_retry_attempts is not None and policy.max_failures is not None:
            raise ConfigurationError(
                f"max_retry_attempts={self.max_retry_attempts} and FailurePolicy(max_failures={policy.max_failures}) "
                "both set the number of restarts. Leave one of these options out."
            )
        if policy.min_hosts is not None and policy.min_hosts > self.instance_count:
            raise ConfigurationError(
                f"FailurePolicy(min_hosts={policy.min_hosts}) is more than instance_count={self.instance_count}."
            )
        if market is not None and not self.use_spot_instances:
            raise ConfigurationError(
                "RunOptions(spot_market=…) interrupts spot instances only: also set use_spot_instances=True, or "
                "interrupt a host with fit(faults=[Interrupt(…)])."
            )

    def _check_local(self) -> None:
        for name in ("output_path", "checkpoint_s3_uri", "model_uri"):
            value = getattr(self, name)
            if value is not None:
                normalise_uri(value)


#: Arguments that are lists of texts.
_LISTS = ("dependencies", "arguments", "container_entry_point", "container_arguments", "subnets", "security_group_ids")
_EXAMPLES = {"dependencies": "['lib']", "arguments": "['--fp16', '--layers', '64', '32']"}
_PATHS = ("entry_point", "source_dir", "output_path", "checkpoint_s3_uri", "checkpoint_local_path", "model_uri")
_TEXTS = (
    "role", "volume_kms_key", "training_plan", "code_location", "image_uri", "framework_version", "py_version",
    "training_repository_access_mode", "training_repository_credentials_provider_arn", "model_channel_name",
    "output_kms_key", "base_job_name",
)  # fmt: skip
#: Whole numbers, and the least and the most that they may be.
_COUNTS = {
    "instance_count": (1, bounds.MAX_HOSTS),
    "volume_size": (1, 65_536),  # GB; the largest volume of AWS
    "max_run": (1, bounds.MAX_SECONDS),
    "container_log_level": (0, 100),
    "capture_limit": (1, 1 << 40),
}
_OPTIONAL_COUNTS = {
    "max_wait": (1, bounds.MAX_SECONDS),
    "max_retry_attempts": RETRIES,
    "keep_alive_period_in_seconds": (0, bounds.MAX_SECONDS),
}
_FLAGS = (
    "disable_output_compression", "use_spot_instances", "enable_sagemaker_metrics", "enable_remote_debug",
    "encrypt_inter_container_traffic", "enable_network_isolation", "enable_infra_check",
    "enable_session_tag_chaining",
)  # fmt: skip


def _encode_hyperparameters(values: Mapping[str, Any], *, plain: bool = False) -> dict[str, str]:
    """Check the user's own hyperparameters and encode them.

    Args:
        values: By their names.
        plain: Whether as ``str()`` of the values, for an image that brings its own entry point, and not as JSON.

    Raises:
        ConfigurationError: a reserved or impossible name, a value without a JSON form, one that is too long, or too
            many of them.
    """
    encoded: dict[str, str] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"hyperparameters: a name must be a string that is not empty, got {shown(name)}.")
        if codec.is_reserved(name):
            raise ConfigurationError(
                f"hyperparameter {name!r}: names that begin with {' or '.join(map(repr, codec.RESERVED_PREFIXES))} "
                "are reserved. Use the estimator's own argument instead."
            )
        if "\0" in name or "=" in name or "\n" in name:
            raise ConfigurationError(f"hyperparameter {name!r}: a name cannot have '=', newlines or NUL characters.")
        if len(name) > _MAX_NAME:
            raise ConfigurationError(f"hyperparameter {name[:60]!r}…: a name has at most {_MAX_NAME} characters.")
        try:
            encoded[name] = codec.plain_value(name, value) if plain else codec.encode_value(name, value)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        if len(encoded[name]) > _MAX_VALUE:
            raise ConfigurationError(
                f"hyperparameter {name!r} has {len(encoded[name])} characters{'' if plain else ' as JSON'}; SageMaker "
                f"takes at most {_MAX_VALUE}. Put long values into a file of a channel."
            )
    if len(encoded) > _MAX_HYPERPARAMETERS:
        raise ConfigurationError(
            f"{len(encoded)} hyperparameters are given; SageMaker takes at most {_MAX_HYPERPARAMETERS}. Put them into "
            "a file of a channel, or combine some in a dict."
        )
    return encoded


def _check_environment(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ConfigurationError(
                f"environment: {shown(name)} is not a valid variable name: use letters, digits and underscores, and "
                "no digit at the beginning."
            )
        if not isinstance(value, str):
            text = shown(value)
            is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**_MAX_NUMBER)
            write = f". Write {text!r}" if is_number else ""
            raise ConfigurationError(f"environment[{name!r}] must be a string, got {text}{write}.")
        if "\0" in value:
            raise ConfigurationError(f"environment[{name!r}]: a NUL character cannot be passed to a process.")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"environment[{name!r}]: {shown(value)} is not valid Unicode text.") from None


def _check_session(session: Any) -> None:
    if session is None or hasattr(session, "boto_region_name") or hasattr(session, "region_name"):
        return
    raise ConfigurationError(
        "sagemaker_session must be a boto3 session (boto3.Session()) or a session of the SageMaker SDK, "
        f"got {shown(session)}."
    )


def _check_text(name: str, value: Any, *, path: bool) -> None:
    """See that a text can be a process's argument, and a path one of a file system."""
    if not isinstance(value, str):
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name}: {shown(value)} is not valid Unicode text.") from None
    if "\0" in value:
        raise ConfigurationError(f"{name}: a NUL character cannot be passed to a process; got {shown(value)}.")
    if size > _MAX_PATH or (path and "://" not in value and max(map(len, value.split("/"))) > _MAX_PART):
        parts = f", and at most {_MAX_PART} between two slashes" if path else ""
        raise ConfigurationError(f"{name}: the value has {size:,} bytes; at most {_MAX_PATH:,} are possible{parts}.")


def _check_count(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        what = f"a whole number, {bounds.range_text(value, low, high)}"
        if isinstance(value, float) and math.isfinite(value) and value == int(value) and low <= value <= high:
            raise ConfigurationError(f"{name} must be {what}, got {shown(value)}. Write {int(value)}.")
        raise ConfigurationError(f"{name} must be {what}; got {shown(value)}.")


def _texts(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return () if name == "dependencies" else None
    if isinstance(value, str | os.PathLike):
        raise ConfigurationError(f"{name} must be a list, got {shown(value)}. Write [{shown(value)}].")
    items = []
    for item in bounds.items_of(name, value, _EXAMPLES.get(name, "")):
        if isinstance(item, os.PathLike):
            item = os.fspath(item)
        if not isinstance(item, str) or (not item and name != "arguments"):
            is_number = isinstance(item, float) or (isinstance(item, int) and abs(item) < 10**_MAX_NUMBER)
            write = f". Write {str(item)!r}" if is_number else ""
            raise ConfigurationError(f"{name} must be a list of strings, got {shown(item)} in it{write}.")
        _check_text(name, item, path=name == "dependencies")
        items.append(item)
    return tuple(items)


def _dict(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} must be a dict, got {shown(value)}.")
    return dict(value)


def _given_metrics(value: Any) -> Any:
    """Return the argument, with the dicts of definitions that an earlier job's request had."""
    if isinstance(value, list | tuple):
        return [item.to_request() if isinstance(item, MetricDefinition) else item for item in value]
    return value


def _parse_tags(value: Any) -> tuple[Tag, ...]:
    if value is None:
        return ()
    if isinstance(value, Mapping) and set(value) != {"Key", "Value"}:
        value = [{"Key": key, "Value": item} for key, item in value.items()]
    elif isinstance(value, Mapping):
        value = [value]
    tags = []
    for item in bounds.items_of("tags", value, "[{'Key': 'team', 'Value': 'vision'}], or a dict"):
        if isinstance(item, Tag):
            tags.append(item)
            continue
        if (
            not isinstance(item, Mapping)
            or set(item) != {"Key", "Value"}
            or not all(isinstance(part, str) for part in item.values())
        ):
            raise ConfigurationError(f"tags: each tag must be {{'Key': text, 'Value': text}}, got {shown(item)}.")
        tags.append(Tag(key=item["Key"], value=item["Value"]))
    return tuple(tags)
