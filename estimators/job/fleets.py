"""Where hosts can come from: the table of the backends' names, and what each of them can do.

Everything outside :mod:`estimators.backends` asks for a capability, and never for a name. A new backend is one folder
there and one line here. Installed packages add theirs by entry points of the group ``fleetfit.backends``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a backend's hosts are like.

    Attributes:
        managed: Whether jobs live on a service of somebody else's: they outlive their supervisor, which only follows
            them, and are described by a whole CreateTrainingJob request.
        shared_machine: Whether all hosts of a job share this machine, with its cores, GPUs and disk.
        containers: Whether hosts are containers, with an image and file trees of their own.
        this_python: Whether scripts run in this Python environment.
        own_environment: Whether scripts run in an environment that is made for them there.
        heartbeats: Whether every host runs our toolkit, and so tells that it is alive.
        elastic: Whether hosts can come and go while a job runs.
        simulated: Whether nothing is started, and what hosts print is given beforehand.
        needs_gpus: Whether hosts are asked for because they get this machine's GPUs.
        spot: Whether spot capacity is bought at a market, which takes hosts back by itself.
        searched_by_name: Whether what jobs have left there is looked for only where a region of it is named (``fleetfit
            clean --NAME``), since that asks a service, with the user's credentials.
        bridges: Whether connections between hosts that do not reach each other can be forwarded.
        locates: Whether a source of places decides where a host is, so that one without a place never comes.
        keeps_imports: Whether a job of a notebook leaves what its scripts import for the next one, unless it is told
            otherwise (``keep_alive_period_in_seconds``).
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fleet:
    """A line of the table.

    Attributes:
        backend: The class that runs jobs there: ``module:name``, imported on use.
        capabilities: What its hosts are like.
        typed: Whether the name only begins an instance type, which goes on with a dot: ``ml.p3.2xlarge``.
    """

    backend: str
    capabilities: Capabilities
    typed: bool = False


#: Processes of this machine; containers on it, without and with its GPUs; the fake for users' own tests; SageMaker;
#: machines that ssh reaches; nodes of a Slurm or a Ray cluster; Spark's executors; EC2.
PROCESSES, CONTAINERS, GPU_CONTAINERS, FAKE, SAGEMAKER = "local_process", "local", "local_gpu", "local_fake", "ml"
SSH, SLURM, RAY, SPARK, EC2 = "ssh", "slurm", "ray", "spark", "ec2"

#: What an estimator takes where it is told nothing.
DEFAULT = PROCESSES

_ON_CONTAINERS = Capabilities(shared_machine=True, containers=True, elastic=True)
FLEETS: Mapping[str, Fleet] = {
    PROCESSES: Fleet(
        backend="estimators.backends.process:ProcessBackend",
        capabilities=Capabilities(
            shared_machine=True, this_python=True, heartbeats=True, elastic=True, keeps_imports=True
        ),
    ),
    CONTAINERS: Fleet(backend="estimators.backends.docker.provider:ContainerCluster", capabilities=_ON_CONTAINERS),
    GPU_CONTAINERS: Fleet(
        backend="estimators.backends.docker.provider:GpuContainerCluster",
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

#: The instance types that are a backend's whole name.
OWN_TYPES = tuple(name for name, fleet in FLEETS.items() if not fleet.typed)


@functools.cache
def added() -> Mapping[str, Fleet]:
    """Return the backends of installed packages, by name."""
    from importlib.metadata import entry_points

    found = entry_points(group="fleetfit.backends")
    return {entry.name: Fleet(backend=entry.value, capabilities=entry.load().capabilities) for entry in found}


def kinds() -> str:
    """Return the table's names as help texts show them: ``ml.TYPE`` where a name only begins an instance type."""
    return ", ".join(f"{name}.TYPE" if fleet.typed else name for name, fleet in FLEETS.items())


def find(name: str) -> Fleet | None:
    """Return the line of a name; None for one that nobody has added."""
    return FLEETS[name] if name in FLEETS else added().get(name)


def names() -> tuple[str, ...]:
    """Return all names, also those that installed packages have added."""
    return (*FLEETS, *added())


def fleet_name(instance_type: str) -> str:
    """Return the name in the table: ``ml`` for every ``ml.*`` type, where that is one; else the type itself."""
    name, dot, _ = instance_type.partition(".")
    fleet = find(name) if dot else None
    return name if fleet is not None and fleet.typed else instance_type


def capabilities(instance_type: str | None) -> Capabilities:
    """Return what an instance type's hosts are like; a type that is not in the table is taken for SageMaker's."""
    fleet = find(fleet_name(instance_type or SAGEMAKER))
    return (fleet or FLEETS[SAGEMAKER]).capabilities


def is_own(instance_type: str | None) -> bool:
    """Return whether fleetfit runs an instance type itself, rather than a managed service."""
    return not capabilities(instance_type).managed
