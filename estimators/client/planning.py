"""Plan a job without starting it: the entry point, the processes and the environment of every host.

:func:`plan_cluster` uses the same code as the backends (:mod:`estimators.backends.config`) and as the toolkits, which
start the processes on the hosts (:mod:`container.launchers`). Therefore the plan shows exactly what will run. The plan
lacks only the values that are created when the job runs: ports, a private folder, and the token of the control
connection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from container import launchers
from container.contract.environment import Environment
from container.contract.layout import MLTree, rebased
from container.contract.plan import Deferred, HostPlan, ProcessPlan, Role
from container.toolkit.code import code
from estimators import backends
from estimators.backends.config import host_config
from estimators.backends.placement import ClusterPlacement
from estimators.client.cluster_plan import ClusterPlan
from estimators.client.source import Source
from estimators.job.errors import ConfigurationError
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records.record import jobs_folder


def replaced_variables(spec: TrainingJobSpec, options: JobOptions) -> list[str]:
    """Return the names of the job's environment variables whose values have no effect.

    fleetfit, like SageMaker's toolkit, sets these variables to other values for every script.
    """
    if not any(name.startswith(("SM_", "SAGEMAKER_", "CURRENT_HOST")) for name in spec.environment):
        return []
    _, environment = _first_host(spec, options)
    ours = environment.to_env_vars()
    return [name for name, value in spec.environment.items() if ours.get(name, value) != value]


def _first_host(
    spec: TrainingJobSpec, options: JobOptions, home: str | Path | None = None
) -> tuple[ClusterPlacement, Environment]:
    """Return the placement of the job's hosts, and the :class:`Environment` that the job's first host would have."""
    place = backends.load(options.backend).placement(spec, options, jobs_folder(home) / spec.name)
    host = spec.hosts[0]
    config = host_config(spec, host, place.facts)
    return place, Environment.from_config(
        base_dir=place.tree(host).base,
        machine=place.machine,
        hyperparameters=config.hyperparameters,
        resource_config=config.resource_config,
        input_data_config=config.input_data_config,
        job_name=spec.name,
        user_environment=spec.environment,
        shared_checkpoints=place.tree(host).shared_checkpoints,
    )


def plan_cluster(
    spec: TrainingJobSpec,
    options: JobOptions,
    *,
    source: Source | None = None,
    home: str | Path | None = None,
    warnings: tuple[str, ...] = (),
) -> ClusterPlan:
    """Return the plan of a job. Nothing is started or written.

    Args:
        spec: The job.
        options: The run options.
        source: The user's code. None if the image contains the code, or the code is on S3.
        home: The folder to use instead of ``$FLEETFIT_HOME``.
        warnings: Warnings to include in the plan.

    Raises:
        ConfigurationError: options of the strategy are invalid.
    """
    place, environment = _first_host(spec, options, home)
    command = _command(spec, source, environment)
    try:
        plan = launchers.plan_job(environment, command)
    except launchers.LaunchError as error:
        raise ConfigurationError(str(error)) from error
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


def _command(spec: TrainingJobSpec, source: Source | None, environment: Environment) -> tuple[str, ...]:
    """Return the command with which a host would start the user's entry point."""
    arguments = environment.to_cmd_args()
    python = environment.machine.python
    if source is None:
        # The image contains its own program, which receives only the hyperparameters.
        return (*spec.algorithm.entry_point, *spec.algorithm.arguments) or ("train", *arguments)
    if source.program in source.made:
        return (python, source.program, *arguments)
    name, root = source.roots[0]
    try:
        if not name:
            return code.entry_command(source.program, root, arguments, python)
        if root.is_dir():
            return (python, "-m", source.program, *arguments)
        if source.program.endswith(".py"):  # a single script is copied without the files beside it
            return (python, source.program, *arguments)
        return code.entry_command(source.program, root.parent, arguments, python)
    except code.CodeError as error:
        raise ConfigurationError(str(error)) from None


def _on_host(host: HostPlan, environment: Environment, tree: MLTree) -> HostPlan:
    """Return a host's plan with the paths of this host's folder, and with the user's environment variables.

    A launcher plans all hosts with the paths of the first host. Therefore the paths of the first host are replaced.
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
        # A host may have thousands of processes, so replace paths only if the paths differ.
        processes=host.processes if here == there else tuple(map(moved_process, host.processes)),
    )
