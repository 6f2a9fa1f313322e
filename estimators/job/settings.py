"""Define the arguments of an estimator's constructor as one value that validates itself.

All checks that need only the arguments are in this module, so that the constructor can report mistakes. Checks that
also need the files of this machine are made by ``fit()`` and ``plan()``.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from container.contract import hyperparameters as codec
from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import shown
from container.contract.rules import option
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
_TEXT = rules.text()
_FLAG = rules.or_none(rules.boolean)

#: SageMaker's limits, from its model (HyperParameters, HyperParameterValue, HyperParameterKey).
_MAX_HYPERPARAMETERS = 100
_MAX_VALUE = 2500
_MAX_NAME = 256


def _list(rule: rules.Rule) -> rules.Rule:
    """Return a rule that accepts None in addition to the values of a rule for lists. None becomes an empty list."""
    return lambda where, value: rule(where, () if value is None else value)


def _dict(where: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise rules.refuse(where, "a dict", value)
    return dict(value or {})


def _environment(where: str, value: Any) -> dict[str, str]:
    values = _dict(where, value)
    for name, item in values.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ConfigurationError(
                f"environment: {shown(name)} is not a valid variable name: use letters, digits and underscores, and "
                "no digit at the beginning."
            )
        if not isinstance(item, str):
            raise ConfigurationError(f"environment[{name!r}] must be a string, got {shown(item)}{rules.write(item)}.")
        rules.passable(f"environment[{name!r}]", item, None)
    return values


def _model_dir(where: str, value: Any) -> str | bool:
    if value is not False and not isinstance(value, str | os.PathLike):
        raise rules.refuse(where, "a path, or False (to leave it out)", value)
    return value if value is False else rules.path(where, value)


def _metrics(where: str, value: Any) -> tuple[MetricDefinition, ...]:
    if isinstance(value, list | tuple):  # the definitions in an earlier job's request are already MetricDefinitions
        value = [item.to_request() if isinstance(item, MetricDefinition) else item for item in value]
    return tuple(MetricDefinition(name=item.name, regex=item.regex) for item in parse_metric_definitions(value))


def _base_name(where: str, value: Any) -> str:
    if not _BASE_NAME.fullmatch(_TEXT(where, value)):
        raise ConfigurationError(
            f"{where} {shown(value)}: a job's name may only have letters, digits and hyphens, and must begin with a "
            "letter or digit."
        )
    return value  # type: ignore[no-any-return]


def _session(where: str, value: Any) -> Any:
    if not hasattr(value, "boto_region_name") and not hasattr(value, "region_name"):
        raise rules.refuse(where, "a boto3 session (boto3.Session()) or a session of the SageMaker SDK", value)
    return value


def _run_options(where: str, value: Any) -> RunOptions:
    if not isinstance(value, RunOptions):
        raise rules.refuse(where, "a RunOptions(…)", value)
    return value


def _tags(where: str, value: Any) -> tuple[Tag, ...]:
    if isinstance(value, Mapping):
        one = set(value) == {"Key", "Value"}
        value = [value] if one else [{"Key": key, "Value": item} for key, item in value.items()]
    tags = []
    for item in rules.items_of(where, value, "[{'Key': 'team', 'Value': 'vision'}], or a dict"):
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of an estimator, with the names and defaults of the SageMaker SDK 2.x.

    The attributes are documented in :class:`estimators.Estimator`. Lists are converted to tuples, dicts are copied,
    and ``distribution`` is parsed. Paths and URIs are kept as given.
    """

    role: str | None = option(_TEXT)
    instance_count: int = option(rules.whole(1, bounds.MAX_HOSTS), 1)
    instance_type: str = fleets.DEFAULT
    keep_alive_period_in_seconds: int | None = option(rules.whole(0, bounds.MAX_SECONDS))
    volume_size: int = option(rules.whole(1, 65_536), 30)  # GB; the largest volume of AWS
    volume_kms_key: str | None = option(_TEXT)
    training_plan: str | None = option(_TEXT)
    instance_placement_config: Mapping[str, Any] | None = None
    entry_point: str | Callable[..., Any] | None = option(
        lambda where, value: value if callable(value) else rules.path(where, value)
    )
    source_dir: str | None = option(rules.path)
    dependencies: tuple[str, ...] = option(_list(rules.words("['lib']", paths=True)), ())
    code_location: str | None = option(_TEXT)
    hyperparameters: Mapping[str, Any] = option(_dict, default_factory=dict)
    arguments: tuple[str, ...] | None = option(rules.words("['--fp16', '--layers', '64', '32']", empty=True))
    environment: Mapping[str, str] = option(_environment, default_factory=dict)
    container_log_level: int = option(rules.whole(0, 100), logging.INFO)
    container_entry_point: tuple[str, ...] | None = option(rules.words())
    container_arguments: tuple[str, ...] | None = option(rules.words())
    image_uri: str | None = option(_TEXT)
    framework_version: str | None = option(_TEXT)
    py_version: str | None = option(_TEXT)
    training_repository_access_mode: str | None = option(_TEXT)
    training_repository_credentials_provider_arn: str | None = option(_TEXT)
    input_mode: str = option(rules.one_of(*_INPUT_MODES), "File")
    model_uri: str | None = option(rules.path)
    model_channel_name: str = option(_TEXT, "model")
    output_path: str | None = option(rules.path)
    output_kms_key: str | None = option(_TEXT)
    disable_output_compression: bool = option(_FLAG, False)
    model_dir: str | bool | None = option(_model_dir)
    max_run: int = option(rules.whole(1, bounds.MAX_SECONDS), _DAY)
    use_spot_instances: bool = option(_FLAG, False)
    max_wait: int | None = option(rules.whole(1, bounds.MAX_SECONDS))
    max_retry_attempts: int | None = option(rules.whole(*RETRIES))
    checkpoint_s3_uri: str | None = option(rules.path)
    checkpoint_local_path: str | None = option(rules.path)
    metric_definitions: tuple[MetricDefinition, ...] = option(_metrics, ())
    enable_sagemaker_metrics: bool | None = option(_FLAG)
    enable_remote_debug: bool | None = option(_FLAG)
    subnets: tuple[str, ...] | None = option(rules.words())
    security_group_ids: tuple[str, ...] | None = option(rules.words())
    encrypt_inter_container_traffic: bool | None = option(_FLAG)
    enable_network_isolation: bool | None = option(_FLAG)
    enable_infra_check: bool | None = option(_FLAG)
    enable_session_tag_chaining: bool | None = option(_FLAG)
    distribution: Distribution | None = option(lambda where, value: parse_distribution(value))
    base_job_name: str | None = option(_base_name)
    sagemaker_session: Any = option(_session)
    tags: tuple[Tag, ...] = option(_list(_tags), ())
    capture_limit: int = option(rules.whole(1, 1 << 40), 10_000_000)
    hang_timeout: float | None = option(
        rules.above_0(f"a number of seconds above 0 and at most {bounds.MAX_SECONDS:,}", bounds.MAX_SECONDS)
    )
    run_options: RunOptions = option(_run_options, default_factory=RunOptions)

    def __post_init__(self) -> None:
        rules.check(self, "{name}")
        self._check_place()
        encoded = _encode_hyperparameters(self.hyperparameters, plain=self.is_plain)
        object.__setattr__(self, "_encoded", encoded)
        self._check_arguments()

    @property
    def capabilities(self) -> fleets.Capabilities:
        """Return the capabilities of the requested hosts."""
        return fleets.capabilities(self.instance_type)

    @property
    def encoded_hyperparameters(self) -> dict[str, str]:
        """Return the user's hyperparameters as texts.

        The texts are JSON. If :attr:`is_plain` is True, the texts are ``str()`` of the values.
        """
        encoded: dict[str, str] = self.__dict__["_encoded"]
        return dict(encoded)

    @property
    def is_plain(self) -> bool:
        """Return whether the job runs the image's entry point instead of a script of the user. The entry point gets the
        hyperparameters as plain texts.
        """
        return self.image_uri is not None and self.entry_point is None and self.source_dir is None

    @property
    def detached(self) -> bool:
        """Return whether a managed service or a dispatcher runs the job. The job then continues if this machine is shut
        down.
        """
        return self.capabilities.managed or self.run_options.dispatcher is not None

    @property
    def region(self) -> str | None:
        """Return the AWS region from the backend's options, the session or the environment variables.

        The options take precedence over the session, and the session takes precedence over the environment variables.
        Return None if no region is set.
        """
        chosen = self.run_options.backend_options.get("region") if self.capabilities.managed else None
        session = self.sagemaker_session
        region = chosen or getattr(session, "boto_region_name", None) or getattr(session, "region_name", None)
        return region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None

    def _check_place(self) -> None:
        problem = validation.instance_type_problem(self.instance_type) or bounds.ranks_problem(
            self.instance_count, 1 if self.distribution is None else self.distribution.ranks_per_host
        )
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
        """Check the command-line arguments for the script.

        There must be a script, no hyperparameter may set the same option, and the request limits the total size.
        """
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
        """Check the options that limit retries and times."""
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


def _encode_hyperparameters(values: Mapping[str, Any], *, plain: bool = False) -> dict[str, str]:
    """Check the user's hyperparameters and encode them.

    Args:
        values: The hyperparameters by name.
        plain: Whether to encode with ``str()`` instead of JSON. An image with an entry point needs ``str()``.

    Raises:
        ConfigurationError: a name is reserved or invalid, a value is too long or cannot be represented as JSON, or
            there are more hyperparameters than SageMaker allows.
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
        rules.passable(f"hyperparameter {name!r}", name)
        if "=" in name or "\n" in name:
            raise ConfigurationError(f"hyperparameter {name!r}: a name cannot have '=' or newlines.")
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
