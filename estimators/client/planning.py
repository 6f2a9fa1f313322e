"""Plan a job: for every host its entry point, its processes, its environment, as :class:`ClusterPlan` shows them.

:func:`plan_cluster` uses what a backend and the hosts' toolkits use (:mod:`estimators.backends.config`,
:mod:`container.launchers`), so what it shows is what runs. Only values that exist once a job runs (ports, a private
folder, the control connection's token) are missing.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from container import launchers
from container.contract.environment import Environment, Machine
from container.contract.layout import DEFAULT_BASE_DIR, MLTree, rebased
from container.contract.plan import Deferred, HostPlan, ProcessPlan, Role
from container.contract.strategies import MPI
from container.system import host_machine as machines
from container.toolkit.code import code
from estimators import backends
from estimators.backends.config import BackendFacts, host_config, toolkit_environment
from estimators.backends.local import checkpoint_dir
from estimators.client.cluster_plan import ClusterPlan
from estimators.client.source import Source
from estimators.job import fleets, instances
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.record import jobs_folder


def plan_cluster(
    spec: TrainingJobSpec,
    options: RunOptions,
    *,
    source: Source | None = None,
    home: str | Path | None = None,
    warnings: tuple[str, ...] = (),
) -> ClusterPlan:
    """Plan a job; starts nothing and writes nothing.

    Args:
        spec: The job.
        options: How it would be run.
        source: The user's code, where it is on this machine.
        home: Instead of ``$FLEETFIT_HOME``.
        warnings: What is known already.

    Raises:
        ConfigurationError: options of the strategy that make no sense.
        UnsupportedError: the strategy cannot be started in this version.
    """
    place = _Place.of(spec, options, home)
    host = spec.hosts[0]
    config = host_config(spec, host, place.facts)
    environment = Environment.from_config(
        base_dir=place.tree(host).base,
        machine=place.machine,
        hyperparameters=config.hyperparameters,
        resource_config=config.resource_config,
        input_data_config=config.input_data_config,
        job_name=spec.name,
        user_environment=spec.environment,
        shared_checkpoints=place.tree(host).shared_checkpoints,
    )
    command = _command(spec, source, environment)
    try:
        plan = launchers.plan_job(environment, command, to_show=True)
    except launchers.LaunchError as error:
        kind = UnsupportedError if "not available" in str(error) else ConfigurationError
        raise kind(str(error)) from error
    plan = dataclasses.replace(
        plan,
        hosts=tuple(_on_host(item, environment, place.tree(item.name)) for item in plan.hosts),
        notes=(*place.notes, *(source.notes() if source is not None else ()), *plan.notes),
    )
    return ClusterPlan(
        spec=spec,
        options=options,
        plan=plan,
        entry_points=place.entry_points,
        gpus=place.machine.gpus,
        preparations=place.preparations,
        warnings=(*warnings, *place.warnings, *plan.warnings),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """What a plan needs to know of where a job would run."""

    machine: Machine
    facts: BackendFacts
    base_dir: Callable[[str], str] = lambda host: DEFAULT_BASE_DIR
    checkpoints: str | None = None
    entry_points: Mapping[str, tuple[str, ...]]
    preparations: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def tree(self, host: str) -> MLTree:
        """Return a host's tree, as it would be."""
        tree = MLTree(Path(self.base_dir(host)))
        return dataclasses.replace(tree, shared_checkpoints=self.checkpoints or str(tree.checkpoints))

    @classmethod
    def of(cls, spec: TrainingJobSpec, options: RunOptions, home: str | Path | None) -> _Place:
        capabilities = fleets.capabilities(spec.instance_type)
        if capabilities.this_python or capabilities.simulated:
            return cls._this_machine(spec, options, home)
        if not capabilities.managed:
            machine_is_ours = capabilities.shared_machine
            return cls._containers(spec, options, home) if machine_is_ours else cls._provided(spec, options)
        gpus = instances.gpus(spec.instance_type)
        algorithm = spec.algorithm
        image = (*algorithm.entry_point, *algorithm.arguments)
        return cls(
            machine=Machine(
                python="python",
                cpus=instances.vcpus(spec.instance_type) or 1,
                gpus=gpus,
                mpirun="mpirun",
                mpi_major=4,
                container_package="container",
            ),
            facts=BackendFacts(network_interface="eth0"),
            entry_points=dict.fromkeys(spec.hosts, image or ("python", "-m", "container", "train")),
        )

    @classmethod
    def _provided(cls, spec: TrainingJobSpec, options: RunOptions) -> _Place:
        from estimators.backends.hosts.cluster import HostCluster

        backend = backends.load(options.backend)
        assert issubclass(backend, HostCluster)
        placement = backend.provider_type.describe(spec, options)
        toolkit = (placement.python, "-I", f"{placement.package}/__main__.py", "train")
        return cls(
            machine=Machine(
                python=placement.python,
                cpus=placement.cpus,
                gpus=placement.gpus,
                mpirun=placement.mpirun,
                container_package=placement.package,
            ),
            facts=BackendFacts(network_interface=placement.interface, instance_type=spec.instance_type),
            base_dir=placement.base_dir,
            entry_points={host: (*placement.connect(host), *toolkit) for host in spec.hosts},
            warnings=placement.warnings,
            notes=placement.notes,
        )

    @classmethod
    def _containers(cls, spec: TrainingJobSpec, options: RunOptions, home: str | Path | None) -> _Place:
        from estimators.backends.docker import containers
        from estimators.backends.docker.options import ContainerOptions

        record = jobs_folder(home) / spec.name
        limits = ContainerOptions.of(options.backend_options)
        gpus = machines.gpu_count() if fleets.capabilities(spec.instance_type).needs_gpus else 0
        plans = [
            containers.plan_container(
                spec,
                options,
                host,
                record=record,
                checkpoints=checkpoint_dir(spec) or record / "checkpoints",
                environment={
                    **containers.environment_of(spec, options, host),
                    **toolkit_environment(spec, options, 0),
                },
                inputs=containers.planned_inputs(spec),
                toolkit=containers.runs_toolkit(spec, (containers.TOOLKIT_LABEL,)),
                gpus=gpus,
            )
            for host in spec.hosts
        ]
        network = containers.network_of(spec)
        isolated = ("--internal",) if spec.network_isolation else ()
        return cls(
            machine=Machine(
                python="python",
                cpus=machines.cpu_count() if limits.cpus is None else max(1, round(limits.cpus)),
                gpus=gpus,
                mpirun="mpirun",
                hosts_here=len(spec.hosts) if limits.cpus is None else 1,
                container_package="container",
            ),
            facts=containers.facts(options),
            entry_points={plan.host: plan.command_line() for plan in plans},
            preparations=(("docker", "network", "create", *isolated, network),),
        )

    @classmethod
    def _this_machine(cls, spec: TrainingJobSpec, options: RunOptions, home: str | Path | None) -> _Place:
        machine, found_mpirun = _machine(options.python, isinstance(spec.strategy, MPI))
        warnings: tuple[str, ...] = ()
        if isinstance(spec.strategy, MPI) and not found_mpirun:
            warnings = ("mpirun was not found on this machine; `fleetfit doctor` says how to get it.",)
        package = Path(machines.__file__).resolve().parents[1]
        record = jobs_folder(home) / spec.name
        return cls(
            machine=machine,
            facts=BackendFacts(network_interface="lo"),
            base_dir=lambda host: str(record / "hosts" / host / "ml"),
            checkpoints=os.path.realpath(checkpoint_dir(spec) or record / "checkpoints"),
            entry_points=dict.fromkeys(spec.hosts, (options.python, "-I", str(package / "__main__.py"), "train")),
            warnings=warnings,
        )


@functools.lru_cache(maxsize=8)
def _machine(python: str, with_mpi: bool) -> tuple[Machine, bool]:
    """This machine for a plan, and whether mpirun was found."""
    found = dataclasses.replace(machines.this_machine(with_mpi=with_mpi), python=python, shared=True)
    if with_mpi and found.mpirun is None:
        return dataclasses.replace(found, mpirun="mpirun"), False
    return found, True


def _command(spec: TrainingJobSpec, source: Source | None, environment: Environment) -> tuple[str, ...]:
    """Return the user's entry point as the host would start it."""
    arguments = environment.to_cmd_args()
    python = environment.machine.python
    if source is None:
        # The image brings its own program: the toolkit is told only what the hyperparameters say.
        return (*spec.algorithm.entry_point, *spec.algorithm.arguments) or ("train", *arguments)
    if source.program in source.made:
        return (python, source.program, *arguments)
    name, root = source.roots[0]
    try:
        if not name:
            return code.entry_command(source.program, root, arguments, python)
        if root.is_dir():
            return (python, "-m", source.program, *arguments)
        if source.program.endswith(".py"):  # alone: what lies beside it now will not be there
            return (python, source.program, *arguments)
        return code.entry_command(source.program, root.parent, arguments, python)
    except code.CodeError as error:
        raise ConfigurationError(str(error)) from None


def _on_host(host: HostPlan, environment: Environment, tree: MLTree) -> HostPlan:
    """Return a host's plan with the paths of its own tree, and with the user's variables.

    Launchers plan with the paths of the host that they run on.
    """
    here, there = str(environment.tree.base), str(tree.base)
    given: Mapping[str, str] = rebased(environment.user_environment, tree)

    def moved(text: str) -> str:
        return text.replace(here, there)

    def moved_variables(variables: Mapping[str, str], first: Mapping[str, str]) -> Mapping[str, str]:
        return Deferred(lambda: {**first, **{name: moved(value) for name, value in variables.items()}})

    def moved_process(process: ProcessPlan) -> ProcessPlan:
        argv = process.argv if process.role is Role.LAUNCHER else tuple(moved(item) for item in process.argv)
        return dataclasses.replace(process, argv=argv, environment=moved_variables(process.environment, {}))

    return dataclasses.replace(
        host,
        environment=moved_variables(host.environment, given),
        # There may be thousands of them.
        processes=host.processes if here == there else tuple(map(moved_process, host.processes)),
    )
