"""What would be started, shown before anything is: for every host its entry point, its processes, its environment.

:func:`plan_cluster` uses what a backend and the hosts' toolkits use (:mod:`estimators.backends.config`,
:mod:`container.launchers`), so what it shows is what runs. Only values that exist once a job runs (ports, a private
folder, the control connection's token) are missing.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container import launchers
from container.contract.environment import Environment, Machine
from container.contract.layout import DEFAULT_BASE_DIR
from container.contract.plan import HostPlan, Plan, ProcessPlan, Role, StartedBy, shell_line
from container.contract.strategies import MPI, Mirrored, ParameterServer
from container.system import host_machine as machines
from container.toolkit.code import code
from estimators import backends
from estimators.backends.config import BackendFacts, host_config
from estimators.backends.local import checkpoint_dir
from estimators.client.source import Source
from estimators.job import fleets, instances
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.job.secrets import mask_argv, mask_mapping, mask_request, mask_value
from estimators.records.record import jobs_folder

TF_CONFIG = "TF_CONFIG"

#: How many characters of a variable's value the text shows; the data has it whole.
_SHOWN = 200
_WIDTH = 110


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """What a job would start. ``print(plan)`` shows it; in a notebook it is HTML; secrets are ``***`` in both.

    Attributes:
        spec: The job.
        options: How it would be run.
        plan: Every host's processes, as data.
        entry_points: Host -> the command of its toolkit or container.
        gpus: The GPUs of each host; where hosts share this machine, those of the machine.
        preparations: The commands that would come before them: a network for the containers.
        warnings: What the user should know before it runs.
    """

    spec: TrainingJobSpec
    options: RunOptions
    plan: Plan
    entry_points: Mapping[str, tuple[str, ...]]
    gpus: int = 0
    preparations: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def request(self) -> dict[str, Any]:
        """The CreateTrainingJob request."""
        return self.spec.to_request()

    @property
    def hosts(self) -> tuple[HostPlan, ...]:
        """What each host runs, in rank order."""
        return self.plan.hosts

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """Every process, host by host."""
        return self.plan.processes

    @property
    def devices(self) -> int:
        """How many GPUs the hosts have together, whatever the strategy uses of them."""
        return self.gpus * (1 if self._capabilities.shared_machine else len(self.hosts))

    def devices_of(self, process: ProcessPlan) -> tuple[int, ...]:
        """The numbers of the GPUs that a process trains on, among those of its host, once it has joined the others.

        A script that does not call ``distributed.init()`` sees all of them, and chooses by itself.
        """
        strategy = self.spec.strategy
        if not self.gpus or process.role is not Role.RANK or strategy is None:
            return ()
        if isinstance(strategy, Mirrored):
            return tuple(range(strategy.devices or self.gpus))
        if process.name in ("chief", "master"):
            return (0,)
        if isinstance(strategy, ParameterServer):  # one worker on each host
            config = self.tf_config(process.host, process.name) or {"task": {"index": 0}}
            place = int(config["task"]["index"]) if self._one_machine else 0
        else:
            place = int((process.rank if self._one_machine else process.local_rank) or 0)
        hosts = len(self.hosts)
        # Containers on one machine have a part of its GPUs each, where there are enough.
        seen = self.gpus // hosts if self._divided and self.gpus >= hosts else self.gpus
        return (place % seen,)

    @property
    def _capabilities(self) -> fleets.Capabilities:
        return fleets.capabilities(self.spec.instance_type)

    @property
    def _one_machine(self) -> bool:
        return self._capabilities.this_python

    @property
    def _divided(self) -> bool:
        return self._capabilities.shared_machine and self._capabilities.containers

    @property
    def ring(self) -> tuple[ProcessPlan, ...]:
        """The ranks in the order in which a ring goes through them, the last to the first; empty where there is none.

        It is TensorFlow's ring, and Horovod's without NCCL and MPI, which may choose other ways.
        """
        strategy = self.spec.strategy
        if strategy is None or not strategy.all_reduce or len(self.plan.ranks) < 2:
            return ()
        return self.plan.ranks

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to see of how it runs: the devices, the ring."""
        found = list(self.plan.notes)
        if self.devices:
            known = instances.describe(self.spec.instance_type)
            kind = f" ({known.device})" if known is not None and known.device is not None else ""
            share = f"{len(self.hosts)} hosts × {self.gpus} = " if self.devices > self.gpus else ""
            found.append(f"devices: {share}{self.devices} GPU{'s' if self.devices > 1 else ''}{kind}")
        if self.ring:
            found.append(f"ring: {self._ring_text()}")
        return tuple(found)

    def _ring_text(self) -> str:
        pieces = []
        for host in self.hosts:
            here = [process for process in self.ring if process.host == host.name]
            ranks = [process.rank for process in here if process.rank is not None]
            gpus = [device for process in here for device in self.devices_of(process)]
            piece = f"{host.name} rank{_span(ranks)}"
            pieces.append(f"{piece} (GPU{_span(gpus)})" if gpus else piece)
        return " → ".join([*pieces, f"back to {self.hosts[0].name}"])

    @property
    def mpirun(self) -> tuple[str, ...] | None:
        """The mpirun command line as an argv list; None for a strategy without one."""
        return self.plan.mpirun

    def environment(self, host: str, process: str | None = None) -> dict[str, str]:
        """Return the variables of a host (the user's and ``SM_*``), or of one of its processes.

        Raises:
            KeyError: there is no such host or process.
        """
        for planned in self.hosts:
            if planned.name != host:
                continue
            shared = {**self.spec.environment, **planned.environment}
            if process is None:
                return shared
            for item in planned.processes:
                if item.name == process:
                    return {**shared, **item.environment}
            raise KeyError(f"{host} runs no {process!r}; it runs {[item.name for item in planned.processes]}")
        raise KeyError(f"there is no host {host!r}; hosts: {[planned.name for planned in self.hosts]}")

    def tf_config(self, host: str, process: str) -> dict[str, Any] | None:
        """Return the TF_CONFIG of a process, decoded; None where the strategy needs none."""
        text = self.environment(host, process).get(TF_CONFIG)
        return None if text is None else dict(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-serialisable data, with secrets masked."""
        return {
            "job": self.spec.name,
            "strategy": self.plan.strategy,
            "instance_type": self.spec.instance_type,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "devices": self.devices,
            "ring": [process.rank for process in self.ring],
            **({} if not self._capabilities.managed else {"request": mask_request(self.request)}),
            "preparations": [mask_argv(command) for command in self.preparations],
            "hosts": [
                {
                    "name": host.name,
                    "entry_point": mask_argv(self.entry_points[host.name]),
                    "environment": mask_mapping({**self.spec.environment, **host.environment}),
                    "processes": [
                        {
                            "name": process.name,
                            "role": process.role.value,
                            "rank": process.rank,
                            "local_rank": process.local_rank,
                            "gpus": list(self.devices_of(process)),
                            "started_by": process.started_by.value,
                            "argv": mask_argv(process.argv),
                            "environment": mask_mapping(process.environment),
                        }
                        for process in host.processes
                    ],
                }
                for host in self.hosts
            ],
        }

    def __str__(self) -> str:
        lines = [self._title(), *(f"warning: {warning}" for warning in self.warnings)]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"first: {_line(command)}" for command in self.preparations]
        for host in self.hosts:
            lines += ["", host.name, f"  entry point: {_line(self.entry_points[host.name])}"]
            for process in host.processes:
                lines += _process_text(process, self.devices_of(process))
            lines.append(self._environment_title(host))
            for name, value in self._shown_environment(host).items():
                lines.append(f"    {name}={_short(value)}")
        if self._capabilities.managed:
            lines += ["", "request (CreateTrainingJob):", self._request_text()]
        return "\n".join(lines)

    def _request_text(self) -> str:
        """Return the request as SageMaker would get it, but for secrets."""
        return json.dumps(mask_request(self.request), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from estimators.results.html import render

        hosts = [
            {
                "name": host.name,
                "entry_point": _line(self.entry_points[host.name]),
                "processes": [
                    (
                        _process_title(process, self.devices_of(process)),
                        _line(process.argv),
                        [f"{name}={_short(value)}" for name, value in mask_mapping(process.environment).items()],
                    )
                    for process in host.processes
                ],
                "title": self._environment_title(host).strip().rstrip(":"),
                "environment": self._shown_environment(host),
            }
            for host in self.hosts
        ]
        return render(
            "client/templates/plan",
            title=self._title(),
            warnings=self.warnings,
            notes=self.notes,
            preparations=[_line(command) for command in self.preparations],
            hosts=hosts,
            request=self._request_text() if self._capabilities.managed else None,
        )

    def _title(self) -> str:
        count = len(self.hosts)
        ranks = {sum(process.role is Role.RANK for process in host.processes) for host in self.hosts}
        hosts = f"{count} host{'s' if count > 1 else ''}"
        if len(ranks) == 1:
            number = next(iter(ranks))
            hosts += f" × {number} process{'es' if number != 1 else ''}"
        return f"{self.spec.name}: strategy {self.plan.strategy}, {hosts}, on {self.spec.instance_type}"

    def _environment_title(self, host: HostPlan) -> str:
        first = self.hosts[0]
        return "  environment:" if host is first else f"  environment (where it differs from {first.name}'s):"

    def _shown_environment(self, host: HostPlan) -> dict[str, Any]:
        environment = self.environment(host.name)
        if host is not self.hosts[0]:
            first = self.environment(self.hosts[0].name)
            environment = {name: value for name, value in environment.items() if first.get(name) != value}
        return {name: mask_value(name, environment[name]) for name in sorted(environment)}


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
        base_dir=place.base_dir(host),
        machine=place.machine,
        hyperparameters=config.hyperparameters,
        resource_config=config.resource_config,
        input_data_config=config.input_data_config,
        job_name=spec.name,
        user_environment=spec.environment,
    )
    command = _command(spec, source, environment)
    try:
        plan = launchers.plan_job(environment, command, to_show=True)
    except launchers.LaunchError as error:
        kind = UnsupportedError if "not available" in str(error) else ConfigurationError
        raise kind(str(error)) from error
    plan = dataclasses.replace(
        plan,
        hosts=tuple(_with_own_tree(item, environment, place.base_dir(item.name)) for item in plan.hosts),
        notes=(*place.notes, *plan.notes),
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
    trees: Path | None
    entry_points: Mapping[str, tuple[str, ...]]
    preparations: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def base_dir(self, host: str) -> str:
        """Return the root of a host's tree."""
        return DEFAULT_BASE_DIR if self.trees is None else str(self.trees / host / "ml")

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
            trees=None,
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
            trees=None,
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
        plans = containers.plan_containers(
            spec,
            options,
            record=record,
            trees={host: record / "hosts" / host / "ml" for host in spec.hosts},
            checkpoints=checkpoint_dir(spec) or record / "checkpoints",
            inputs=dict.fromkeys(spec.hosts, containers.planned_inputs(spec)),
            toolkit=containers.runs_toolkit(spec, (containers.TOOLKIT_LABEL,)),
            gpus=gpus,
        )
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
            trees=None,
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
        return cls(
            machine=machine,
            facts=BackendFacts(network_interface="lo"),
            trees=jobs_folder(home) / spec.name / "hosts",
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


def _with_own_tree(host: HostPlan, environment: Environment, base_dir: str) -> HostPlan:
    """Return a host's plan with the paths of its own tree: launchers plan with those of the host that they run on."""
    here = str(environment.tree.base)
    if base_dir == here:
        return host

    def moved(text: str) -> str:
        return text.replace(here, base_dir)

    return dataclasses.replace(
        host,
        environment={name: moved(value) for name, value in host.environment.items()},
        processes=tuple(
            dataclasses.replace(
                process,
                argv=process.argv if process.role is Role.LAUNCHER else tuple(moved(item) for item in process.argv),
                environment={name: moved(value) for name, value in process.environment.items()},
            )
            for process in host.processes
        ),
    )


def _process_title(process: ProcessPlan, gpus: tuple[int, ...]) -> str:
    title = process.name
    places = [f"local rank {process.local_rank}"] if process.local_rank is not None else []
    places += [f"GPU{_span(list(gpus))}"] if gpus else []
    if places:
        title += f" ({', '.join(places)})"
    if process.started_by is StartedBy.MPIRUN:
        title += ", started by mpirun"
    return title


def _span(numbers: list[int]) -> str:
    """`` 3``, ``s 0–7`` or ``s 0, 2``, behind a word in the singular."""
    if len(numbers) < 2:
        return f" {numbers[0]}" if numbers else "s none"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"s {numbers[0]}–{numbers[-1]}"
    return f"s {', '.join(map(str, numbers))}"


def _process_text(process: ProcessPlan, gpus: tuple[int, ...]) -> list[str]:
    lines = [f"  {_process_title(process, gpus)}:"]
    lines += textwrap.wrap(
        _line(process.argv),
        _WIDTH,
        initial_indent="    ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or ["    "]
    lines += [f"    {name}={_short(value)}" for name, value in mask_mapping(process.environment).items()]
    return lines


def _line(argv: tuple[str, ...]) -> str:
    return shell_line(mask_argv(argv))


def _short(value: Any) -> str:
    text = str(value).replace("\n", "\\n")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}… ({len(text)} characters)"
