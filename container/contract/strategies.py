"""Define distribution strategies. Convert strategies to hyperparameters. Parse strategies from SageMaker's dicts and
from hyperparameters.

The dict keys and the ``sagemaker_*`` hyperparameters are those of the SageMaker SDK 2.x (``estimator.py``,
``_distribution_configuration``). Settings that the SageMaker SDK does not have are named ``fleetfit_*``.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from container.contract import rules
from container.contract.errors import ArgumentNameError, ConfigurationError
from container.contract.frozen import dataclass
from container.contract.names import shown, unknown
from container.contract.rules import option

#: Maximum number of processes per host. No machine for training has more cores, let alone GPUs.
MAX_PROCESSES_PER_HOST = 1024
#: Maximum number of hosts, workers or resets: more than any cluster has.
_MOST = 1_000_000
#: Maximum number of seconds, milliseconds or MiB.
_MOST_AMOUNT = 1_000_000_000
_MOST_BYTES = 1 << 40
_COUNT = rules.whole(1, _MOST)
_COUNT_OR_0 = rules.whole(0, _MOST)
_PROCESSES = rules.whole(1, MAX_PROCESSES_PER_HOST)
_AMOUNT = rules.number(0, _MOST_AMOUNT)

#: Replacement for TensorFlow 1's options that set a number of GPUs.
_NUM_GPUS = (
    "each process has one GPU. Set processes_per_host=… of MPI() or CollectiveAllReduce() to the number of GPUs of a "
    "host"
)


class Distribution:
    """Base class of the strategies. Subclasses are frozen dataclasses that validate their options.

    Attributes:
        name: The strategy's name in tables and error messages.
        key: The strategy's key in SageMaker's ``distribution`` dict.
        launcher: Name of the launcher that starts the strategy.
        aliases: Other keys of the dict that are also accepted.
        synchronous: Whether all ranks do each training step together.
        all_reduce: Whether the ranks reduce their gradients with an all-reduce operation. If true, a host may have
            several ranks.
        frameworks: The frameworks whose scripts the strategy can distribute.
    """

    name: ClassVar[str]
    key: ClassVar[str]
    launcher: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    synchronous: ClassVar[bool] = True
    all_reduce: ClassVar[bool] = False
    frameworks: ClassVar[tuple[str, ...]] = ("tensorflow",)
    #: Field -> hyperparameter.
    parameters: ClassVar[Mapping[str, str]] = {}
    enabled_parameter: ClassVar[str]
    #: Other hyperparameters of SageMaker that also enable the strategy.
    also_enabled_by: ClassVar[tuple[str, ...]] = ()
    #: Field -> value that the field gets if SageMaker's dict or the job's hyperparameters do not contain the field.
    #: Only fields for which SageMaker's default differs from the dataclass's default are listed.
    left_out: ClassVar[Mapping[str, Any]] = {}
    #: Options from TensorFlow 1 that articles still mention -> their replacement today.
    former: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Create the strategy's object. Raise a helpful error for unknown options before the dataclass assigns the
        options.
        """
        if args:
            raise ArgumentNameError(f"{cls.__name__}(…) takes its options by name; got {args[0]!r} without a name.")
        for name in options:
            cls.check_option(f"option of {cls.__name__}", name)
        return super().__new__(cls)

    @classmethod
    def check_option(cls, what: str, name: Any, more: tuple[str, ...] = ()) -> None:
        """Raise an error if an option is unknown. For an option of TensorFlow 1, the message names the current
        replacement.

        Args:
            what: The name of this kind of option in error messages.
            name: The name of the option.
            more: Names that are allowed in addition to the strategy's own options.

        Raises:
            ArgumentNameError: the option is unknown.
        """
        allowed = (*more, *(field.name for field in dataclasses.fields(cls)))  # type: ignore[arg-type]
        if name in allowed:
            return
        if name in cls.former:
            raise ArgumentNameError(f"{what} {name!r} exists in TensorFlow 1 only: {cls.former[name]}.")
        raise ArgumentNameError(unknown(what, name, allowed))

    def __post_init__(self) -> None:
        rules.check(self)

    def __repr__(self) -> str:
        return rules.text_of(self)

    @property
    def ranks_per_host(self) -> int:
        """Return the number of ranks on each host."""
        return int(getattr(self, "processes_per_host", 1))

    @property
    def fewest_hosts(self) -> int | None:
        """Return the minimum number of hosts with which an attempt may begin. Return None if all hosts of the job are
        needed.
        """
        return None

    def to_hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters from which a container can restore the strategy. A ``fleetfit_*`` hyperparameter
        is omitted if its value is the default.
        """
        values: dict[str, Any] = {self.enabled_parameter: True}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            parameter = self.parameters[field.name]
            if parameter.startswith("fleetfit_") and value == self.left_out.get(field.name, field.default):
                continue
            values[parameter] = value
        return values

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the strategy as SageMaker's ``distribution`` dict. An option is omitted if its value is the one
        that SageMaker's dict implies for an omitted option (see :attr:`left_out`).
        """
        options = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != self.left_out.get(field.name, field.default)
        }
        return {self.key: {"enabled": True, **options}}


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Distribution):
    """TensorFlow's strategy with parameter servers. Processes named ``ps`` store the variables, and workers update the
    variables asynchronously.

    ``ParameterServer()`` starts the cluster of TensorFlow 2. SageMaker's dict ``{"parameter_server": {"enabled":
    True}}`` is equal to ``ParameterServer(cluster_spec="sagemaker")``, and starts SageMaker's cluster.

    Attributes:
        script_on: The processes that run the script. ``"all"`` means the chief and every worker, as in TensorFlow's
            guide. ``"chief"`` means only the chief, for scripts that only coordinate the workers. ``"chief"`` requires
            ``cluster_spec="coordinator"``.
        cluster_spec: The cluster to start.
            ``"coordinator"``: the cluster of TensorFlow 2. Every host has a ``ps`` and a ``worker``; algo-1 also has
            the ``chief``, which schedules the workers' steps.
            ``"sagemaker"``: the cluster of SageMaker's TensorFlow container. The script runs once on each host, as
            ``master`` on algo-1 and as ``worker`` on the other hosts. Every host also has a ``ps``. With one host, only
            the script runs, without a cluster. Scripts in TensorFlow 1's style train on each host separately. If a
            script calls ``distributed.init()``, the master coordinates the workers.
    """

    script_on: str = option(rules.one_of("all", "chief"), "all")
    cluster_spec: str = option(rules.one_of("coordinator", "sagemaker"), "coordinator")

    name: ClassVar[str] = "parameter_server"
    key: ClassVar[str] = "parameter_server"
    launcher: ClassVar[str] = "parameter_server"
    synchronous: ClassVar[bool] = False
    enabled_parameter: ClassVar[str] = "sagemaker_parameter_server_enabled"
    parameters: ClassVar[Mapping[str, str]] = {
        "script_on": "fleetfit_parameter_server_script_on",
        "cluster_spec": "fleetfit_parameter_server_cluster_spec",
    }
    left_out: ClassVar[Mapping[str, Any]] = {"cluster_spec": "sagemaker"}
    former: ClassVar[Mapping[str, str]] = {"num_gpus_per_worker": _NUM_GPUS}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.script_on == "chief" and self.cluster_spec == "sagemaker":
            raise ConfigurationError(
                "ParameterServer(script_on='chief') needs cluster_spec='coordinator'. With cluster_spec='sagemaker' "
                "(the default if distribution is a dict), the script runs on every host."
            )

    @property
    def coordinated(self) -> bool:
        """Return whether the strategy starts the cluster of TensorFlow 2, which has a chief in addition to the
        workers.
        """
        return self.cluster_spec == "coordinator"


@dataclass(frozen=True, kw_only=True)
class MPI(Distribution):
    """The strategy for Horovod's ring all-reduce, or for any MPI program. One ``mpirun`` starts ``processes_per_host``
    ranks on every host.

    Attributes:
        processes_per_host: Number of ranks on each host.
        custom_mpi_options: Additional options for mpirun, quoted as for a shell. These options override fleetfit's
            defaults.
        fusion_threshold_mb: The size of Horovod's tensor fusion buffer in MiB (``HOROVOD_FUSION_THRESHOLD``).
        cycle_time_ms: Horovod's cycle time in milliseconds (``HOROVOD_CYCLE_TIME``).
        hierarchical_allreduce: Whether to use Horovod's hierarchical all-reduce (``HOROVOD_HIERARCHICAL_ALLREDUCE``).
        autotune: Whether to use Horovod's autotuning (``HOROVOD_AUTOTUNE``).
    """

    processes_per_host: int = option(_PROCESSES, 1)
    custom_mpi_options: str = option(rules.string, "")
    fusion_threshold_mb: float | None = option(_AMOUNT)
    cycle_time_ms: float | None = option(_AMOUNT)
    hierarchical_allreduce: bool | None = option(rules.boolean)
    autotune: bool | None = option(rules.boolean)

    name: ClassVar[str] = "mpi"
    key: ClassVar[str] = "mpi"
    launcher: ClassVar[str] = "mpi"
    all_reduce: ClassVar[bool] = True
    frameworks: ClassVar[tuple[str, ...]] = ("tensorflow", "torch")
    enabled_parameter: ClassVar[str] = "sagemaker_mpi_enabled"
    parameters: ClassVar[Mapping[str, str]] = {
        "processes_per_host": "sagemaker_mpi_num_of_processes_per_host",
        "custom_mpi_options": "sagemaker_mpi_custom_mpi_options",
        "fusion_threshold_mb": "fleetfit_mpi_fusion_threshold_mb",
        "cycle_time_ms": "fleetfit_mpi_cycle_time_ms",
        "hierarchical_allreduce": "fleetfit_mpi_hierarchical_allreduce",
        "autotune": "fleetfit_mpi_autotune",
    }

    def horovod_environment(self) -> dict[str, str]:
        """Return the ``HOROVOD_*`` variables for the options that are set.

        Source: Horovod, ``runner/common/util/config_parser.py``.
        """
        values: dict[str, str] = {}
        if self.fusion_threshold_mb is not None:
            values["HOROVOD_FUSION_THRESHOLD"] = str(int(self.fusion_threshold_mb * 1024 * 1024))
        if self.cycle_time_ms is not None:
            values["HOROVOD_CYCLE_TIME"] = f"{self.cycle_time_ms:g}"
        if self.hierarchical_allreduce is not None:
            values["HOROVOD_HIERARCHICAL_ALLREDUCE"] = str(int(self.hierarchical_allreduce))
        if self.autotune is not None:
            values["HOROVOD_AUTOTUNE"] = str(int(self.autotune))
        return values


@dataclass(frozen=True, kw_only=True)
class CollectiveAllReduce(Distribution):
    """The strategy for TensorFlow's ``MultiWorkerMirroredStrategy``. Every rank runs the script with its own TF_CONFIG.

    Attributes:
        processes_per_host: Number of ranks on each host.
        communication: The implementation of collective operations: ``"ring"``, ``"nccl"`` or ``"auto"``.
        bytes_per_pack: Maximum size, in bytes, of a pack of gradients. With 0, TensorFlow chooses the size.
        timeout_seconds: Number of seconds after which a collective operation fails. None for no limit.
    """

    processes_per_host: int = option(_PROCESSES, 1)
    communication: str = option(rules.one_of("ring", "nccl", "auto"), "auto")
    bytes_per_pack: int = option(rules.whole(0, _MOST_BYTES), 0)
    timeout_seconds: float | None = option(_AMOUNT)

    name: ClassVar[str] = "collective_all_reduce"
    key: ClassVar[str] = "multi_worker_mirrored_strategy"
    aliases: ClassVar[tuple[str, ...]] = ("collective_all_reduce",)
    launcher: ClassVar[str] = "collective"
    all_reduce: ClassVar[bool] = True
    enabled_parameter: ClassVar[str] = "sagemaker_multi_worker_mirrored_strategy_enabled"
    former: ClassVar[Mapping[str, str]] = {
        "allreduce_merge_scope": "gradients are packed by their size now, up to bytes_per_pack=… bytes; 0 lets "
        "TensorFlow choose",
        "gpu_indices": (
            "each rank uses the GPU of its local rank, and the ring follows the order of the ranks. Set "
            "processes_per_host=… to the number of GPUs of a host"
        ),
        "num_gpus_per_worker": _NUM_GPUS,
        "num_gpus": _NUM_GPUS,
        "all_reduce_alg": "set communication='ring', 'nccl' or 'auto' instead",
        "cross_tower_ops": "set communication='ring', 'nccl' or 'auto' instead",
        "cross_device_ops": "set communication='ring', 'nccl' or 'auto' instead",
        "rewriter_config": "TensorFlow 2 packs gradients by itself, up to bytes_per_pack=… bytes",
    }
    parameters: ClassVar[Mapping[str, str]] = {
        "processes_per_host": "fleetfit_collective_processes_per_host",
        "communication": "fleetfit_collective_communication",
        "bytes_per_pack": "fleetfit_collective_bytes_per_pack",
        "timeout_seconds": "fleetfit_collective_timeout_seconds",
    }


@dataclass(frozen=True, kw_only=True)
class Mirrored(Distribution):
    """The strategy for TensorFlow's ``MirroredStrategy``. One process on one host has a copy of the model on each
    device.

    Attributes:
        devices: Number of GPUs to use, or None for all GPUs of the host. On a host without GPUs, the number of virtual
            devices that share the CPU, or None for one device. Several virtual devices are useful for testing a script.
        communication: The algorithm that sums gradients: ``"nccl"``, ``"hierarchical_copy"``, ``"one_device"`` or
            ``"auto"``.
    """

    devices: int | None = option(_COUNT)
    communication: str = option(rules.one_of("auto", "nccl", "hierarchical_copy", "one_device"), "auto")

    name: ClassVar[str] = "mirrored"
    key: ClassVar[str] = "mirrored"
    aliases: ClassVar[tuple[str, ...]] = ("mirrored_strategy",)
    launcher: ClassVar[str] = "mirrored"
    enabled_parameter: ClassVar[str] = "fleetfit_mirrored_enabled"
    parameters: ClassVar[Mapping[str, str]] = {
        "devices": "fleetfit_mirrored_devices",
        "communication": "fleetfit_mirrored_communication",
    }
    former: ClassVar[Mapping[str, str]] = {
        "num_gpus": "set devices=… instead",
        "num_gpus_per_worker": "set devices=… instead",
        "gpu_indices": "devices=… uses the first GPUs; to use others, set CUDA_VISIBLE_DEVICES in environment={…}",
        "cross_tower_ops": "set communication='nccl', 'hierarchical_copy', 'one_device' or 'auto' instead",
        "cross_device_ops": "set communication='nccl', 'hierarchical_copy', 'one_device' or 'auto' instead",
    }

    def one_host_only(self, hosts: int) -> str:
        """Return the error message for a job with more than one host."""
        return (
            f"Mirrored() is for one host, and uses all devices of that host. Got instance_count={hosts}. For several "
            "hosts, use CollectiveAllReduce(), or MPI() for Horovod."
        )


@dataclass(frozen=True, kw_only=True)
class TorchDistributed(Distribution):
    """The strategy for PyTorch's ``torch.distributed``. Every rank runs the script with the environment variables that
    torchrun sets.

    The ranks connect to each other when the script calls ``torch.distributed.init_process_group()``. The strategy is
    meant for DistributedDataParallel, for FSDP, and for libraries that use DistributedDataParallel or FSDP.

    Attributes:
        processes_per_host: Number of ranks on each host, as with torchrun's ``--nproc-per-node``.
    """

    processes_per_host: int = option(_PROCESSES, 1)

    name: ClassVar[str] = "torch_distributed"
    key: ClassVar[str] = "torch_distributed"
    aliases: ClassVar[tuple[str, ...]] = ("pytorchddp",)
    launcher: ClassVar[str] = "torch_distributed"
    all_reduce: ClassVar[bool] = True
    frameworks: ClassVar[tuple[str, ...]] = ("torch",)
    enabled_parameter: ClassVar[str] = "sagemaker_torch_distributed_enabled"
    also_enabled_by: ClassVar[tuple[str, ...]] = ("sagemaker_pytorch_ddp_enabled",)
    parameters: ClassVar[Mapping[str, str]] = {"processes_per_host": "fleetfit_torch_processes_per_host"}


#: Value of the discovery hyperparameter if ``discovery`` is a function, which runs in the calling process.
DISCOVERED_BY_CALLER = "@caller"


def _discovery(where: str, value: Any) -> Any:
    if callable(value):
        return value
    if not isinstance(value, str | os.PathLike):
        raise rules.refuse(where, "the path of a script or file, or a function", value)
    return rules.path(where, value)


@dataclass(frozen=True, kw_only=True)
class Elastic(Distribution):
    """Base class of the strategies whose jobs can gain and lose hosts during the training. A job starts with
    ``instance_count`` hosts.

    Attributes:
        processes_per_host: Number of workers on each host.
        discovery: The source of the list of available hosts, in one of three forms. The first form is the path of an
            executable script that prints a line ``host`` or ``host:slots`` for each host (as for Horovod's
            ``--host-discovery-script``). The second form is the path of a file with such lines. The third form is a
            function without arguments. The function returns a list of names, or a dict that maps names to numbers of
            slots. A function works only while the process that started the job is running.
        slots: Number of slots of a host whose line does not contain the number. If None, ``processes_per_host`` is
            used.
        spares: Number of additional hosts that are kept ready. A spare host joins at once when the job needs one more
            host or has lost a host.
        min_hosts: Minimum number of hosts. With fewer hosts, the training waits for up to ``elastic_timeout`` seconds.
        max_hosts: Maximum number of hosts. If None, ``instance_count`` is used.
        workers: Number of workers at the start. The training waits for up to ``elastic_timeout`` seconds until this
            number of workers is available. If None, the number is ``instance_count`` times ``processes_per_host``.
        min_workers: Minimum number of workers. This option overrides ``min_hosts``.
        max_workers: Maximum number of workers. This option overrides ``max_hosts``.
        reset_limit: Maximum number of times that the workers repeat the rendezvous. If this number is exceeded, the job
            fails. None for no limit.
        cooldown: The shortest and the longest time, in seconds, for which a host is excluded after a worker on the host
            has failed. The time doubles with each failure on the host.
        exclusion: A class with your own rule for the exclusion of hosts, which replaces ``cooldown``. The value is
            ``path/of/file.py:Name`` or ``package.module:Name``. The constructor of the class is called without
            arguments. The method ``failed(host, now)`` of the class returns the time until which the host is excluded.
            ``now`` and the returned time are seconds of a monotonic clock (see
            ``estimators.supervisor.elastic.policy.ExclusionPolicy``).
        elastic_timeout: Maximum number of seconds that a training with too few workers waits for more workers.
        max_join: Maximum number of hosts that join at the same time. None for no limit.
        max_leave: Maximum number of hosts that are removed at the same time on request. None for no limit.
        grow_every: Minimum time, in seconds, between two increases of the number of hosts.
    """

    processes_per_host: int = option(_PROCESSES, 1)
    min_hosts: int = option(_COUNT, 1)
    max_hosts: int | None = option(_COUNT)
    workers: int | None = option(_COUNT)
    min_workers: int | None = option(_COUNT)
    max_workers: int | None = option(_COUNT)
    reset_limit: int | None = option(_COUNT_OR_0)
    cooldown: tuple[float, float] = option(rules.pair("(shortest, longest) in seconds", _AMOUNT), (1.0, 60.0))
    exclusion: str | None = option(
        rules.text(r".+:[A-Za-z_]\w*", "not 'path/of/file.py:Name' or 'package.module:Name'")
    )
    elastic_timeout: float = option(_AMOUNT, 600.0)
    max_join: int | None = option(_COUNT)
    max_leave: int | None = option(_COUNT)
    grow_every: float = option(_AMOUNT, 0.0)
    discovery: Any = option(_discovery)
    slots: int | None = option(_COUNT)
    spares: int = option(_COUNT_OR_0, 0)

    all_reduce: ClassVar[bool] = True
    #: Whether all workers restart from their last checkpoint when a worker is lost or joins.
    restarts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        own = type(self).__name__
        if self.max_hosts is not None and self.max_hosts < self.min_hosts:
            raise ConfigurationError(
                f"{own}: max_hosts={self.max_hosts} is less than min_hosts={self.min_hosts}. Swap them."
            )
        if self.max_workers is not None and self.max_workers < self.least_workers:
            raise ConfigurationError(
                f"{own}: max_workers={self.max_workers} must be at least the minimum of {self.least_workers} workers."
            )

        if self.workers is not None and not self.least_workers <= self.workers <= (self.max_workers or math.inf):
            most = f" and at most {self.max_workers}" if self.max_workers else ""
            raise ConfigurationError(
                f"{own}: workers={self.workers}, the initial number, must be at least {self.least_workers}{most}."
            )

    def to_hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters, as :meth:`Distribution.to_hyperparameters` does.

        A discovery function is not transferred, because it runs in the calling process. Relative paths are made
        absolute, because they are relative to the calling process's working directory.
        """
        values = super().to_hyperparameters()
        if callable(self.discovery):
            values[self.parameters["discovery"]] = DISCOVERED_BY_CALLER
        elif self.discovery not in (None, DISCOVERED_BY_CALLER):
            values[self.parameters["discovery"]] = os.path.abspath(self.discovery)
        if self.exclusion is not None and ".py:" in self.exclusion:
            values[self.parameters["exclusion"]] = os.path.abspath(self.exclusion)
        return values

    @property
    def fewest_hosts(self) -> int:
        """Return the minimum number of hosts with which an attempt may begin."""
        return self.min_hosts

    @property
    def least_workers(self) -> int:
        """Return the minimum number of workers. With fewer workers, the training waits for more workers."""
        return self.min_workers or self.min_hosts * self.processes_per_host

    def planned_workers(self, instance_count: int) -> int:
        """Return the number of workers that the job's global batch size and learning rate are meant for."""
        return self.workers or instance_count * self.processes_per_host

    def first_workers(self, instance_count: int) -> int:
        """Return the number of workers that the training starts with."""
        return max(self.least_workers, min(self.planned_workers(instance_count), self.most_workers(instance_count)))

    def most_hosts(self, instance_count: int) -> int:
        """Return the maximum number of hosts."""
        return self.max_hosts if self.max_hosts is not None else max(instance_count, self.min_hosts)

    def most_workers(self, instance_count: int) -> int:
        """Return the maximum number of workers."""
        return self.max_workers or self.most_hosts(instance_count) * self.processes_per_host


#: Field of an elastic strategy -> hyperparameter.
_ELASTIC = {field.name: f"fleetfit_elastic_{field.name}" for field in dataclasses.fields(Elastic)}


@dataclass(frozen=True, kw_only=True)
class ElasticHorovod(Elastic):
    """The strategy for elastic Horovod: hosts can join and leave during the training. A job starts with
    ``instance_count`` hosts.

    In addition to the options of every elastic strategy (:class:`Elastic`), this class has one option.

    Attributes:
        warm: If True, a new worker runs the script up to ``hvd.init()`` before the worker joins. The other workers
            train during this time. If False, a new worker is started only when the worker's rank is known, as with
            horovodrun.
    """

    warm: bool = option(rules.boolean, True)

    name: ClassVar[str] = "elastic_horovod"
    key: ClassVar[str] = "elastic_horovod"
    launcher: ClassVar[str] = "elastic"
    frameworks: ClassVar[tuple[str, ...]] = ("tensorflow", "torch")
    enabled_parameter: ClassVar[str] = "fleetfit_elastic_horovod_enabled"
    parameters: ClassVar[Mapping[str, str]] = {**_ELASTIC, "warm": "fleetfit_elastic_warm"}


@dataclass(frozen=True, kw_only=True)
class ElasticTorchDistributed(Elastic):
    """The strategy for ``torch.distributed`` with hosts that can join and leave. After each change of the hosts, all
    ranks are restarted, as with torchrun.

    As for torchrun, a script must load its last checkpoint when it starts. The job continues after the loss of any
    host, even of the first host. In addition to the options of every elastic strategy (:class:`Elastic`), this class
    has one option.

    Attributes:
        max_restarts: Maximum number of restarts of all ranks after failures of the script, as for torchrun's
            ``--max-restarts``. After one more failure, the job fails. Restarts because of lost, added or removed hosts
            are not counted.
    """

    max_restarts: int = option(_COUNT_OR_0, 3)

    name: ClassVar[str] = "elastic_torch_distributed"
    key: ClassVar[str] = "elastic_torch_distributed"
    launcher: ClassVar[str] = "elastic_torch"
    frameworks: ClassVar[tuple[str, ...]] = ("torch",)
    restarts: ClassVar[bool] = True
    enabled_parameter: ClassVar[str] = "fleetfit_elastic_torch_enabled"
    parameters: ClassVar[Mapping[str, str]] = {**_ELASTIC, "max_restarts": "fleetfit_elastic_max_restarts"}


STRATEGIES: tuple[type[Distribution], ...] = (
    *(ParameterServer, MPI, CollectiveAllReduce, Mirrored, ElasticHorovod),
    *(TorchDistributed, ElasticTorchDistributed),
)

for _strategy in STRATEGIES:  # for help() and editors: the signature of __new__ would not name the options
    _of_init = inspect.signature(_strategy.__init__)
    _strategy.__signature__ = _of_init.replace(parameters=list(_of_init.parameters.values())[1:])  # type: ignore[attr-defined]

#: SageMaker's strategies that need AWS's own libraries or devices.
_REFUSED = {
    "smdistributed": (
        "AWS's smdistributed libraries run in AWS's own images on ml.* types only. Use 'mpi' with Horovod, or "
        "'torch_distributed' for PyTorch"
    ),
    "pytorchxla": "PyTorch/XLA is for AWS's Trainium. Use 'torch_distributed' for CPUs and GPUs",
    "instance_groups": "heterogeneous clusters are not supported yet",
}

#: A framework's name -> its usual spelling.
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}


def framework_problem(strategy: Distribution | None, framework: str | None) -> str | None:
    """Return an error message if a strategy cannot distribute a framework's scripts. Return None if the strategy can.

    Args:
        strategy: The strategy, or None.
        framework: The name of the framework, which is a key of :data:`FRAMEWORKS`. None if unknown.
    """
    if strategy is None or framework is None or framework in strategy.frameworks:
        return None
    others = ", ".join(repr(other.key) for other in STRATEGIES if framework in other.frameworks)
    return (
        f"distribution {strategy.key!r} is for {FRAMEWORKS[strategy.frameworks[0]]} scripts; "
        f"for {FRAMEWORKS[framework]}, use one of {others}."
    )


def parse_distribution(value: Any) -> Distribution | None:
    """Convert the ``distribution`` argument of an estimator to a strategy.

    Args:
        value: A :class:`Distribution`, SageMaker's dict (``{"mpi": {"enabled": True, …}}``), or None.

    Returns:
        The strategy. None if ``value`` is None, or if all strategies in the dict are disabled (``{"mpi": {"enabled":
        False}}``).

    Raises:
        ConfigurationError: a key is unknown, two strategies are enabled, or an option is out of range. Also raised if
            ``value`` is neither a strategy nor a dict.
    """
    if value is None or isinstance(value, Distribution):
        return value
    if isinstance(value, type) and issubclass(value, Distribution):
        raise ConfigurationError(f"distribution: give an instance, {value.__name__}(), not the class.")
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"distribution must be a strategy such as MPI(processes_per_host=2) or a dict such as "
            f"{{'mpi': {{'enabled': True}}}}; got {shown(value)}."
        )
    by_key = {key: strategy for strategy in STRATEGIES for key in (strategy.key, *strategy.aliases)}
    enabled: list[Distribution] = []
    for key, options in value.items():
        if key in _REFUSED:
            raise ConfigurationError(f"distribution {key!r} is not available: {_REFUSED[key]}.")
        if key not in by_key:
            raise ConfigurationError(unknown("distribution", key, by_key))
        strategy = _parse_options(key, by_key[key], options)
        if strategy is not None:
            enabled.append(strategy)
    if len(enabled) > 1:
        raise ConfigurationError(
            f"distribution: one strategy at a time, got {', '.join(repr(s.key) for s in enabled)}. Disable all but one."
        )
    return enabled[0] if enabled else None


def strategy_from_hyperparameters(hyperparameters: Mapping[str, Any]) -> Distribution | None:
    """Read a strategy from hyperparameters that :meth:`Distribution.to_hyperparameters` or the SageMaker SDK 2.x has
    created. Return None if the hyperparameters enable no strategy.

    Args:
        hyperparameters: The decoded values of the hyperparameters, by name.

    Raises:
        ConfigurationError: two strategies are enabled, or an option is out of range.
    """
    found: list[Distribution] = []
    for strategy in STRATEGIES:
        if not any(
            _truth(hyperparameters.get(name, False)) for name in (strategy.enabled_parameter, *strategy.also_enabled_by)
        ):
            continue
        options = {
            field: hyperparameters[parameter]
            for field, parameter in strategy.parameters.items()
            if hyperparameters.get(parameter) is not None
        }
        found.append(strategy(**{**strategy.left_out, **options}))
    if len(found) > 1:
        raise ConfigurationError(
            f"hyperparameters enable several strategies: {', '.join(s.enabled_parameter for s in found)}; "
            "enable only one."
        )
    return found[0] if found else None


def _parse_options(key: str, strategy: type[Distribution], options: Any) -> Distribution | None:
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"distribution {key!r}: its options must be a dict such as {{'enabled': True}}; got {options!r}."
        )
    for name in options:
        strategy.check_option(f"option of distribution {key!r}:", name, ("enabled",))
    if "enabled" not in options:
        raise ConfigurationError(
            f"distribution {key!r}: 'enabled' is missing. Write {{{key!r}: {{'enabled': True, …}}}}. Without "
            "'enabled', SageMaker trains without distribution and without a warning."
        )
    enabled = options["enabled"]
    if not isinstance(enabled, bool):
        raise ConfigurationError(f"distribution {key!r}: 'enabled' must be True or False, got {enabled!r}.")
    given = {name: value for name, value in options.items() if name != "enabled"}
    strategy_object = strategy(**{**strategy.left_out, **given})
    return strategy_object if enabled else None


def _truth(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    return bool(value)
