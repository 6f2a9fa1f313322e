"""Represent a training job as values: SageMaker's ``CreateTrainingJob`` request and the supervisor's options.

:class:`TrainingJobSpec` can be converted to the request (:meth:`~TrainingJobSpec.to_request`). The request can be
converted back to an equal value (:meth:`~TrainingJobSpec.from_request`). Members of the request that fleetfit does not
use are kept unchanged in ``others``, so that no part of a client's request is lost. Absent members are None or empty.

:class:`JobOptions` is saved beside the request. The request and the options are the only input of backends and the
supervisor.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from container.contract import hyperparameters as codec
from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import shown, suggests_arguments
from container.contract.rules import option
from container.contract.strategies import Distribution, strategy_from_hyperparameters
from estimators.job import bounds, fleets, queueing
from estimators.job.errors import ConfigurationError
from estimators.job.failure_policy import FailurePolicy
from estimators.job.faults import Fault, Interrupt
from estimators.job.faults import check as check_faults
from estimators.job.spot_market import SpotMarket

S = TypeVar("S", bound="_Shape")

#: The possible reactions of fleetfit to a problem that it detects in a running job.
Noticed = Literal["warn", "fail"]
NOTICED = get_args(Noticed)

#: The cluster's hosts are ``algo-1`` … ``algo-N``, as on SageMaker.
HOST_PREFIX = "algo-"


def _member(name: str, *, shape: type[_Shape] | None = None, many: bool = False, default: Any = None) -> Any:
    """Return a dataclass field for one member of a request's structure.

    Args:
        name: SageMaker's name of the member.
        shape: The dataclass of the value. None if the value is not a structure.
        many: Whether the member is a list. The field is then a tuple. An empty tuple is omitted from the request.
        default: The value if the member is absent. ``dict`` for an empty map.
    """
    metadata = {"member": name, "shape": shape, "many": many}
    if many:
        return dataclasses.field(default=(), metadata=metadata)
    if default is dict:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """The base class of the structures of a request. The metadata of each field tells this class how to convert the
    field to a member of the request and back.

    Attributes:
        others: The members of the structure that fleetfit does not use, unchanged, by SageMaker's names.
    """

    others: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Mapping):
                object.__setattr__(self, field.name, _copy(value))
            elif isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
            if field.metadata.get("member") in self.others:
                raise ConfigurationError(
                    f"{type(self).__name__}(others=…): {field.metadata['member']} has its own field, {field.name}."
                )

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_request(), sort_keys=True, default=repr))

    def __repr__(self) -> str:
        return rules.text_of(self)

    def to_request(self) -> dict[str, Any]:
        """Return the structure as JSON-like data for a request. Absent members are omitted."""
        request: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            if "member" not in field.metadata:
                continue
            value = getattr(self, field.name)
            if value is None or (isinstance(value, tuple | dict) and not value):
                continue
            request[field.metadata["member"]] = _render(value)
        request.update(_copy(self.others))
        return request

    @classmethod
    def from_request(cls: type[S], request: Mapping[str, Any]) -> S:
        """Read the structure from a request.

        Raises:
            ConfigurationError: a member has the wrong type. Errors from :mod:`estimators.job.validation` also contain
                the path of the member.
        """
        if not isinstance(request, Mapping):
            raise ConfigurationError(f"{cls.__name__}: expected a structure, got {shown(request)}.")
        rest = dict(request)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name = field.metadata.get("member")
            if name not in rest:
                continue
            value = rest.pop(name)
            if value is not None:
                values[field.name] = _parse(f"{cls.__name__}.{name}", value, field)
        return cls(**values, others=_copy(rest))


def _parse(where: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    shape: type[_Shape] | None = field.metadata["shape"]
    if not field.metadata["many"]:
        return shape.from_request(value) if shape is not None else _copy(value)
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"{where}: expected a list, got {shown(value)}.")
    if shape is None:
        return tuple(_copy(item) for item in value)
    return tuple(shape.from_request(item) for item in value)


def _render(value: Any) -> Any:
    if isinstance(value, _Shape):
        return value.to_request()
    if isinstance(value, tuple):
        return [_render(item) for item in value]
    return _copy(value)


def _copy(value: Any, depth: int = 0) -> Any:
    """Return a deep copy of JSON-like data."""
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth >= codec.MAX_DEPTH:
        raise ConfigurationError(
            f"the job's request: a value is nested more than {codec.MAX_DEPTH} levels deep, or contains itself."
        )
    if isinstance(value, Mapping):
        return {name: _copy(item, depth + 1) for name, item in value.items()}
    return [_copy(item, depth + 1) for item in value]


@dataclass(frozen=True, kw_only=True)
class MetricDefinition(_Shape):
    """A metric that is read from the logs.

    Attributes:
        name: The metric's name.
        regex: A regular expression whose first group matches the number.
    """

    name: str = _member("Name", default="")
    regex: str = _member("Regex", default="")


@dataclass(frozen=True, kw_only=True)
class Algorithm(_Shape):
    """The code that runs (``AlgorithmSpecification``).

    Attributes:
        input_mode: The input mode of channels that do not set one: ``File``, ``Pipe`` or ``FastFile``.
        image: The URI of the container image.
        name: The name or ARN of a SageMaker algorithm that is used instead of an image.
        metric_definitions: The metrics to read from the logs.
        enable_metrics_time_series: Whether SageMaker stores time series of the metrics.
        entry_point: The container's entry point. The value replaces the image's entry point.
        arguments: The container's arguments.
    """

    input_mode: str = _member("TrainingInputMode", default="File")
    image: str | None = _member("TrainingImage")
    name: str | None = _member("AlgorithmName")
    metric_definitions: tuple[MetricDefinition, ...] = _member("MetricDefinitions", shape=MetricDefinition, many=True)
    enable_metrics_time_series: bool | None = _member("EnableSageMakerMetricsTimeSeries")
    entry_point: tuple[str, ...] = _member("ContainerEntrypoint", many=True)
    arguments: tuple[str, ...] = _member("ContainerArguments", many=True)


@dataclass(frozen=True, kw_only=True)
class S3DataSource(_Shape):
    """Data under a URI. Local jobs also accept ``file://`` URIs and plain paths.

    Attributes:
        uri: ``s3://bucket/prefix``, ``file:///path`` or ``/path``.
        data_type: ``S3Prefix``, ``ManifestFile`` or ``AugmentedManifestFile``.
        distribution: ``FullyReplicated`` or ``ShardedByS3Key``.
        attribute_names: The attributes to read from an augmented manifest.
        instance_groups: The instance groups that get the data.
    """

    uri: str = _member("S3Uri", default="")
    data_type: str = _member("S3DataType", default="S3Prefix")
    distribution: str | None = _member("S3DataDistributionType")
    attribute_names: tuple[str, ...] = _member("AttributeNames", many=True)
    instance_groups: tuple[str, ...] = _member("InstanceGroupNames", many=True)


@dataclass(frozen=True, kw_only=True)
class FileSystemDataSource(_Shape):
    """A folder of an EFS or FSx file system.

    Attributes:
        file_system_id: The ID of the file system, such as ``fs-…``.
        file_system_type: ``EFS`` or ``FSxLustre``.
        directory_path: The absolute path of the folder.
        access_mode: ``ro`` (read-only) or ``rw`` (read and write).
    """

    file_system_id: str = _member("FileSystemId", default="")
    file_system_type: str = _member("FileSystemType", default="EFS")
    directory_path: str = _member("DirectoryPath", default="")
    access_mode: str = _member("FileSystemAccessMode", default="ro")


@dataclass(frozen=True, kw_only=True)
class DataSource(_Shape):
    """The location of a channel's data. Exactly one of the two attributes must be set."""

    s3: S3DataSource | None = _member("S3DataSource", shape=S3DataSource)
    file_system: FileSystemDataSource | None = _member("FileSystemDataSource", shape=FileSystemDataSource)


@dataclass(frozen=True, kw_only=True)
class Shuffle(_Shape):
    """The seed for shuffling a channel's data (``ShuffleConfig``).

    Attributes:
        seed: The seed of the random order.
    """

    seed: int = _member("Seed", default=0)


@dataclass(frozen=True, kw_only=True)
class InputChannel(_Shape):
    """One input channel.

    Attributes:
        name: The channel's name, such as ``training``.
        source: The location of the data.
        input_mode: The input mode of the channel. The value overrides the job's input mode. None to use the job's input
            mode.
        content_type: The MIME type of the data. The script can read this value.
        compression: ``None`` or ``Gzip``.
        record_wrapper: ``None`` or ``RecordIO``.
        shuffle: The seed for shuffling the order of objects and of manifest entries, or None.
    """

    name: str = _member("ChannelName", default="")
    source: DataSource = _member("DataSource", shape=DataSource, default=DataSource())
    input_mode: str | None = _member("InputMode")
    content_type: str | None = _member("ContentType")
    compression: str | None = _member("CompressionType")
    record_wrapper: str | None = _member("RecordWrapperType")
    shuffle: Shuffle | None = _member("ShuffleConfig", shape=Shuffle)


@dataclass(frozen=True, kw_only=True)
class OutputConfig(_Shape):
    """The location of outputs (``OutputDataConfig``).

    Attributes:
        path: The prefix of the outputs, which are saved in ``<path>/<job>/output/``.
        kms_key: The key that encrypts the outputs.
        compression: ``GZIP`` or ``NONE``.
    """

    path: str = _member("S3OutputPath", default="")
    kms_key: str | None = _member("KmsKeyId")
    compression: str | None = _member("CompressionType")


@dataclass(frozen=True, kw_only=True)
class Resources(_Shape):
    """The hosts of the job (``ResourceConfig``).

    Attributes:
        instance_type: The instance type, for example ``ml.p3.2xlarge``. :mod:`estimators.job.fleets` lists the local
            types.
        instance_count: The number of hosts.
        volume_size_gb: The storage of each instance in GB.
        volume_kms_key: The key that encrypts the storage.
        keep_alive_s: How long SageMaker keeps the instances for the next job, in seconds.
        training_plan: The ARN of a training plan.
    """

    instance_type: str | None = _member("InstanceType")
    instance_count: int | None = _member("InstanceCount")
    volume_size_gb: int | None = _member("VolumeSizeInGB")
    volume_kms_key: str | None = _member("VolumeKmsKeyId")
    keep_alive_s: int | None = _member("KeepAlivePeriodInSeconds")
    training_plan: str | None = _member("TrainingPlanArn")


@dataclass(frozen=True, kw_only=True)
class VpcConfig(_Shape):
    """The job's private network on AWS."""

    security_group_ids: tuple[str, ...] = _member("SecurityGroupIds", many=True)
    subnets: tuple[str, ...] = _member("Subnets", many=True)


@dataclass(frozen=True, kw_only=True)
class StoppingCondition(_Shape):
    """The time limits of the job.

    Attributes:
        max_run_s: The training time after which the job is stopped, in seconds.
        max_wait_s: The longest time of the job including the wait for spot capacity, in seconds.
        max_pending_s: The longest time that the job may wait for capacity of a training plan, in seconds.
    """

    max_run_s: int | None = _member("MaxRuntimeInSeconds")
    max_wait_s: int | None = _member("MaxWaitTimeInSeconds")
    max_pending_s: int | None = _member("MaxPendingTimeInSeconds")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(_Shape):
    """The location of checkpoints.

    Attributes:
        uri: The location that is synchronised with ``local_path`` while the job runs.
        local_path: The folder in the container. None for ``/opt/ml/checkpoints``.
    """

    uri: str = _member("S3Uri", default="")
    local_path: str | None = _member("LocalPath")


@dataclass(frozen=True, kw_only=True)
class RetryStrategy(_Shape):
    """The retry strategy of SageMaker after a failure of the platform.

    Attributes:
        max_attempts: The number of retries, from 1 to 30.
    """

    max_attempts: int = _member("MaximumRetryAttempts", default=1)


@dataclass(frozen=True, kw_only=True)
class Tag(_Shape):
    """A tag of the job."""

    key: str = _member("Key", default="")
    value: str = _member("Value", default="")


@dataclass(frozen=True, kw_only=True)
class TrainingJobSpec(_Shape):
    """A ``CreateTrainingJob`` request as a value.

    The class does not check the values. :func:`estimators.job.validation.check_request` checks the finished request,
    because clients that do not use this class also send requests.

    Attributes:
        name: The job's name.
        role: The ARN of the IAM role. Local jobs have a placeholder.
        algorithm: The image and the input mode.
        hyperparameters: The hyperparameters as texts, by name. fleetfit and the SageMaker SDK 2.x encode the values as
            JSON.
        inputs: The channels.
        output: The location where outputs are saved.
        resources: The hosts.
        vpc: The private network on AWS.
        stopping: The time limits.
        tags: The tags.
        network_isolation: Whether containers have no network.
        encrypt_traffic: Whether to encrypt the traffic between hosts.
        spot: Whether to use spot capacity.
        checkpoint: The location where checkpoints are saved.
        environment: The environment variables for the containers.
        retry: The retry strategy.
        present: The names of the hosts on which the current attempt runs. Empty if it runs on all hosts. The names are
            not a member of the request.
    """

    name: str = _member("TrainingJobName", default="")
    role: str = _member("RoleArn", default="")
    algorithm: Algorithm = _member("AlgorithmSpecification", shape=Algorithm, default=Algorithm())
    hyperparameters: Mapping[str, str] = _member("HyperParameters", default=dict)
    inputs: tuple[InputChannel, ...] = _member("InputDataConfig", shape=InputChannel, many=True)
    output: OutputConfig = _member("OutputDataConfig", shape=OutputConfig, default=OutputConfig())
    resources: Resources = _member("ResourceConfig", shape=Resources, default=Resources())
    vpc: VpcConfig | None = _member("VpcConfig", shape=VpcConfig)
    stopping: StoppingCondition = _member("StoppingCondition", shape=StoppingCondition, default=StoppingCondition())
    tags: tuple[Tag, ...] = _member("Tags", shape=Tag, many=True)
    network_isolation: bool | None = _member("EnableNetworkIsolation")
    encrypt_traffic: bool | None = _member("EnableInterContainerTrafficEncryption")
    spot: bool | None = _member("EnableManagedSpotTraining")
    checkpoint: CheckpointConfig | None = _member("CheckpointConfig", shape=CheckpointConfig)
    environment: Mapping[str, str] = _member("Environment", default=dict)
    retry: RetryStrategy | None = _member("RetryStrategy", shape=RetryStrategy)
    present: tuple[str, ...] = ()

    def with_hosts(self, hosts: tuple[str, ...]) -> TrainingJobSpec:
        """Return the job for an attempt that runs on only some of the hosts. The hosts keep their names.

        Args:
            hosts: The names of the hosts to use, in rank order.
        """
        resources = dataclasses.replace(self.resources, instance_count=len(hosts))
        return dataclasses.replace(self, resources=resources, present=hosts)

    @property
    def instance_type(self) -> str:
        """Return the instance type, which selects the backend."""
        return self.resources.instance_type or ""

    @property
    def instance_count(self) -> int:
        """Return the number of hosts."""
        return self.resources.instance_count or 1

    @functools.cached_property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts' names in rank order."""
        return self.present or tuple(f"{HOST_PREFIX}{number}" for number in range(1, self.instance_count + 1))

    @property
    def decoded_hyperparameters(self) -> dict[str, Any]:
        """Return all hyperparameters, decoded from texts to Python values."""
        return codec.decode(self.hyperparameters)

    @property
    def user_hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters that the user has set, decoded from texts to Python values.

        Names that fleetfit reserves are omitted.
        """
        return {name: value for name, value in self.decoded_hyperparameters.items() if not codec.is_reserved(name)}

    @functools.cached_property
    def strategy(self) -> Distribution | None:
        """Return the distribution strategy that the hyperparameters define. Return None if they define no strategy.

        The hyperparameters are read only once.

        Raises:
            ValueError: the hyperparameters enable several strategies, or an option is out of range.
        """
        return strategy_from_hyperparameters(self.decoded_hyperparameters)

    @property
    def ranks_per_host(self) -> int:
        """Return the number of ranks on each host. A job without a strategy has one rank per host."""
        return self.strategy.ranks_per_host if self.strategy is not None else 1

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.instance_count * self.ranks_per_host

    @property
    def program(self) -> str | None:
        """Return the entry point, relative to the source folder. Return None if the image has an entry point."""
        return codec.program(self.hyperparameters, self.environment)

    @property
    def hang_timeout(self) -> float | None:
        """Return the time after which the job fails if no rank makes progress, in seconds. Return None for no limit."""
        value = codec.decode_value(self.hyperparameters.get(codec.HANG_TIMEOUT))
        return float(value) if value else None

    @property
    def submit_directory(self) -> str | None:
        """Return the location of the source, or None if the image contains the source.

        The location is the URI of the folder ``source/`` in the record, or the URI of an archive on S3.
        """
        return codec.submit_directory(self.hyperparameters, self.environment)


def _json_options(where: str, value: Any) -> dict[str, Any]:
    """Convert options to JSON types, because the record stores them as JSON.

    Args:
        where: The name of the field of :class:`RunOptions`, for error messages.
        value: The options.

    Raises:
        ConfigurationError: the value is not a dict with names as keys, or has values that JSON cannot represent.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise rules.refuse(where, "a dict with names as keys", value)
    try:
        options: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False, default=os.fspath))
    except (TypeError, ValueError, RecursionError):
        raise ConfigurationError(
            f"{where} may only contain strings, paths, numbers, lists and dicts, as JSON; got {shown(value)}."
        ) from None
    return options


_SECONDS = rules.seconds(0, bounds.MAX_SECONDS)


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options that the supervisor and the backend need to run a job, in addition to SageMaker's request.

    Attributes:
        python: The interpreter for the script and for the toolkit, the program that starts a host's processes. It is
            used only if the backend uses an interpreter of this machine.
        stop_grace: How long the script has to save its state after ``stop()``, at the end of ``max_run`` or when
            SageMaker stops the job, in seconds.
        interrupt_grace: How long the script has to save its state after Ctrl-C or an interrupt of the notebook's
            kernel, in seconds.
        start_timeout: The maximum time until all hosts have started, in seconds.
        backend_options: The options for the selected backend. The backend checks the options.
        failure_policy: The reaction to failed and preempted attempts.
        spot_market: A simulated spot market, which determines when the hosts of a job with ``use_spot_instances`` are
            interrupted.
        faults: The faults to inject, as in ``fit(faults=…)``.
        on_undistributed: ``warn`` or ``fail``. The reaction if the ranks of a strategy never connect or exchange no
            data.
        on_nan: ``warn`` or ``fail``. The reaction if a reported metric is NaN or a loss is infinite.
        dispatcher: The machine on which the job's supervisor runs. The value is ``user@host`` for a machine that is
            reached by ssh, or ``ray`` for the head of a Ray cluster. The job then continues even if this machine is
            shut down. None to run the supervisor on this machine.
        dispatcher_options: The options for the selected dispatcher. The dispatcher checks the options.
        queue: The name of the queue of this machine in which the job waits. None to start the job at once.
        priority: The priority in the queue, from -1000 to 1000. Jobs with a higher priority start first.
        needs: The resources of the machine that the job needs: ``cores``, ``gpus``, ``memory_gb``. By default, a job
            needs one core for each rank, and all GPUs.
        preemptible: Whether a job with a higher priority in the queue may interrupt this job. The script then has
            ``stop_grace`` seconds to save its state. A new attempt follows later, as after a spot interruption.
    """

    python: str = option(rules.text(), default_factory=lambda: sys.executable)
    stop_grace: float = option(_SECONDS, 120.0)
    interrupt_grace: float = option(_SECONDS, 5.0)
    start_timeout: float = option(_SECONDS, 60.0)
    backend_options: Mapping[str, Any] = option(_json_options, default_factory=dict)
    failure_policy: FailurePolicy = option(rules.nested(FailurePolicy), FailurePolicy())
    spot_market: SpotMarket | None = option(rules.nested(SpotMarket))
    faults: Sequence[Fault] = option(lambda where, value: check_faults(value), ())
    on_undistributed: Noticed = option(rules.one_of(*NOTICED), "warn")
    on_nan: Noticed = option(rules.one_of(*NOTICED), "warn")
    dispatcher: str | None = option(rules.text())
    dispatcher_options: Mapping[str, Any] = option(_json_options, default_factory=dict)
    queue: str | None = option(queueing.check_name)
    priority: int = option(
        rules.whole(-queueing.MOST_URGENT, queueing.MOST_URGENT, "jobs with the highest number start first"), 0
    )
    needs: Mapping[str, float] = option(queueing.check_needs, default_factory=dict)
    preemptible: bool = option(rules.boolean, False)

    def __repr__(self) -> str:
        return rules.text_of(self)

    def __post_init__(self) -> None:
        rules.check(self, "RunOptions({name}=…)")
        for name in ("priority", "needs", "preemptible"):
            if self.queue is None and getattr(self, name):
                raise ConfigurationError(f"RunOptions({name}=…) is for jobs in a queue: add queue='default'.")

    @property
    def longest_grace(self) -> float:
        """Return the longest time that scripts may have to save their state after SIGTERM, in seconds.

        Scripts get SIGTERM when the job is stopped, and when a host gets the notice of an interruption.
        """
        notices = [fault.notice_s for fault in self.faults if isinstance(fault, Interrupt)]
        if self.spot_market is not None:
            notices.append(self.spot_market.notice_s)
        return max(self.stop_grace, *notices, 0.0)


@dataclass(frozen=True, kw_only=True)
class JobOptions(RunOptions):
    """The options of a job as stored in the job's record: the user's run options, and the options that fleetfit sets.

    Attributes:
        backend: The name of the backend.
        warnings: The warnings that were found before the start. They are stored in the job's status.
        framework_version: The requested framework version. Backends with images use the version to select the image.
        py_version: The requested Python version. Backends with images use the version to select the image.
        frameworks: The frameworks (``tensorflow``, ``torch``) in environments that are created for the job on other
            machines.
        asked_instance_type: The instance type that a client of the endpoint requested. Scripts see this type. With
            None, scripts see the instance type on which the job runs.
    """

    backend: str = fleets.DEFAULT
    warnings: tuple[str, ...] = option(rules.words(item=lambda where, value: value), ())
    framework_version: str | None = None
    py_version: str | None = None
    frameworks: tuple[str, ...] = option(rules.words(), ("tensorflow",))
    asked_instance_type: str | None = None

    @classmethod
    def of(cls, given: RunOptions, **more: Any) -> JobOptions:
        """Create a job's options from a user's run options.

        Args:
            given: The user's run options.
            more: The options that fleetfit sets, by name.
        """
        return cls(**{field.name: getattr(given, field.name) for field in dataclasses.fields(RunOptions)}, **more)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JobOptions:
        """Create a job's options from the dict that :func:`container.contract.rules.to_dict` has returned.

        Raises:
            ConfigurationError: this version of fleetfit does not have an option, or an option's value is invalid.
        """
        return rules.from_dict(cls, values, "run option")  # type: ignore[no-any-return]

    @property
    def run_options(self) -> RunOptions:
        """Return the user's run options without the options that fleetfit sets."""
        return RunOptions(**{field.name: getattr(self, field.name) for field in dataclasses.fields(RunOptions)})
