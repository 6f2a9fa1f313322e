"""Define the table of backends with their names and capabilities.

Code outside :mod:`estimators.backends` checks only capabilities, not names. A new backend needs one folder in
:mod:`estimators.backends` and one entry in this table. Installed packages add backends by entry points of the group
``fleetfit.backends``.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping

from container.contract.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The capabilities of a backend and its hosts.

    Attributes:
        managed: Whether a managed service runs the jobs. Such jobs do not depend on their supervisor, which only
            follows them. The jobs are described by a complete CreateTrainingJob request.
        shared_machine: Whether all hosts of a job share this machine with its cores, GPUs and disk.
        containers: Whether hosts are containers. Each container has an image and a file tree.
        this_python: Whether scripts run in the Python environment of the process that starts the job.
        own_environment: Whether scripts run in an environment that is created for them on the hosts.
        heartbeats: Whether every host runs fleetfit's toolkit, the program that starts the host's processes and sends
            heartbeats.
        elastic: Whether hosts can join and leave while a job runs.
        simulated: Whether the backend starts no processes, and replays output that the user's test has defined.
        needs_gpus: Whether hosts need GPUs of this machine.
        spot: Whether spot capacity is bought in a real market, which interrupts hosts.
        searched_by_name: Whether ``fleetfit clean`` searches for leftovers of jobs only if the user names a region with
            ``--NAME``. The reason is that the search queries a service with the user's credentials.
        bridges: Whether fleetfit can forward connections between hosts that cannot connect to each other directly.
        locates: Whether the source that lists an elastic job's hosts, such as a discovery script, decides on which
            machine each host runs. A host for which the source has no machine does not start.
        keeps_imports: Whether jobs that are started in a notebook keep, by default, a process with the imported modules
            for the next job. ``keep_alive_period_in_seconds`` overrides this default.
    """

    managed: bool = False
    shared_machine: bool = False
    containers: bool = False
    this_python: bool = False
    own_environment: bool = False
    heartbeats: bool = False
    elastic: bool = False
    simulated: bool = False
    needs_gpus: bool = False
    spot: bool = False
    searched_by_name: bool = False
    bridges: bool = False
    locates: bool = False
    keeps_imports: bool = False


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """An entry in the table of backends.

    Attributes:
        backend: The class of the host provider or of the backend, as ``module:name``. The module is imported on first
            use.
        capabilities: The capabilities of the backend.
        typed: Whether the backend's name is only the prefix of instance types, before a dot, such as ``ml`` in
            ``ml.p3.2xlarge``.
    """

    backend: str
    capabilities: Capabilities
    typed: bool = False


#: The names of the backends: processes of this machine, containers on this machine without and with GPUs, the fake
#: backend for users' tests, and SageMaker. The second line has machines that are reached by ssh, nodes of a Slurm
#: cluster or a Ray cluster, Spark's executors, and EC2.
PROCESSES, CONTAINERS, GPU_CONTAINERS, FAKE, SAGEMAKER = "local_process", "local", "local_gpu", "local_fake", "ml"
SSH, SLURM, RAY, SPARK, EC2 = "ssh", "slurm", "ray", "spark", "ec2"

#: An estimator's default instance type.
DEFAULT = PROCESSES

_ON_CONTAINERS = Capabilities(shared_machine=True, containers=True, elastic=True)
FLEETS: Mapping[str, Fleet] = {
    PROCESSES: Fleet(
        backend="estimators.backends.process:ProcessProvider",
        capabilities=Capabilities(
            shared_machine=True, this_python=True, heartbeats=True, elastic=True, keeps_imports=True
        ),
    ),
    CONTAINERS: Fleet(backend="estimators.backends.docker.provider:DockerProvider", capabilities=_ON_CONTAINERS),
    GPU_CONTAINERS: Fleet(
        backend="estimators.backends.docker.provider:GpuDockerProvider",
        capabilities=dataclasses.replace(_ON_CONTAINERS, needs_gpus=True),
    ),
    FAKE: Fleet(
        backend="estimators.backends.fake:FakeBackend",
        capabilities=Capabilities(shared_machine=True, simulated=True),
    ),
    SSH: Fleet(
        backend="estimators.backends.ssh.provider:SshProvider",
        capabilities=Capabilities(own_environment=True, heartbeats=True, elastic=True, bridges=True, locates=True),
    ),
    SLURM: Fleet(
        backend="estimators.backends.slurm.provider:SlurmProvider",
        capabilities=Capabilities(heartbeats=True, elastic=True),
    ),
    RAY: Fleet(
        backend="estimators.backends.ray.provider:RayProvider",
        capabilities=Capabilities(heartbeats=True, elastic=True, locates=True),
    ),
    SPARK: Fleet(
        backend="estimators.backends.spark.provider:SparkProvider",
        capabilities=Capabilities(heartbeats=True, elastic=True),
    ),
    EC2: Fleet(
        backend="estimators.backends.ec2.provider:Ec2Provider",
        capabilities=Capabilities(
            own_environment=True, heartbeats=True, elastic=True, spot=True, searched_by_name=True, bridges=True
        ),
        typed=True,
    ),
    SAGEMAKER: Fleet(
        backend="estimators.backends.sagemaker.backend:SageMakerBackend",
        capabilities=Capabilities(managed=True, containers=True, spot=True),
        typed=True,
    ),
}

#: The instance types that equal the name of a backend.
OWN_TYPES = tuple(name for name, fleet in FLEETS.items() if not fleet.typed)


@functools.cache
def added() -> Mapping[str, Fleet]:
    """Return the backends that installed packages have added, by name. Warn of a backend that cannot be loaded."""
    from importlib.metadata import entry_points

    found = {}
    for entry in entry_points(group="fleetfit.backends"):
        try:
            found[entry.name] = Fleet(backend=entry.value, capabilities=entry.load().capabilities)
        except Exception as error:  # noqa: BLE001 - the code of another package must not prevent the use of fleetfit
            text = f"the backend {entry.name!r} ({entry.value}) of an installed package cannot be loaded: {error!r}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return found


def kinds() -> str:
    """Return the names of fleetfit's own backends for help texts. A prefix is shown in the form ``ml.TYPE``."""
    return ", ".join(f"{name}.TYPE" if fleet.typed else name for name, fleet in FLEETS.items())


def find(name: str) -> Fleet | None:
    """Return the backend with the given name. Return None if the name is unknown."""
    return FLEETS[name] if name in FLEETS else added().get(name)


def names() -> tuple[str, ...]:
    """Return the names of all backends, including the backends of installed packages."""
    return (*FLEETS, *added())


def fleet_name(instance_type: str) -> str:
    """Return the name of an instance type's backend.

    For a type with a prefix that is a backend's name, such as ``ml.p3.2xlarge``, the result is the prefix, ``ml``. Any
    other instance type is itself the name of a backend.
    """
    name, dot, _ = instance_type.partition(".")
    fleet = find(name) if dot else None
    return name if fleet is not None and fleet.typed else instance_type


def capabilities(instance_type: str | None) -> Capabilities:
    """Return the capabilities of an instance type. An unknown type is treated as a SageMaker type."""
    fleet = find(fleet_name(instance_type or SAGEMAKER))
    return (fleet or FLEETS[SAGEMAKER]).capabilities


def is_own(instance_type: str | None) -> bool:
    """Return whether fleetfit itself runs an instance type. Return False if a managed service runs the type."""
    return not capabilities(instance_type).managed
