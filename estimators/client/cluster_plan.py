"""Define the plan of a job: every process that the job would start, as data and as a readable summary.

``Estimator.plan()`` returns the plan without starting a process.
"""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from container.contract.frozen import dataclass
from container.contract.names import suggests_arguments
from container.contract.plan import HostPlan, Plan, ProcessPlan, Role, StartedBy, shell_line
from container.contract.strategies import Mirrored, ParameterServer
from estimators.job import fleets, instances
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.job.secrets import mask_argv, mask_mapping, mask_request, mask_value
from estimators.results.tables import prose, terminal_width

TF_CONFIG = "TF_CONFIG"

_Item = TypeVar("_Item")

#: Maximum number of characters of an environment variable's value in the text of a plan. :meth:`to_dict` returns the
#: whole value.
_SHOWN = 200
_WIDTH = 110
#: If a job has more than `_MANY` hosts, the summary shows only the first `_FIRST` and the last `_LAST` hosts. The same
#: limits apply to the processes of each host.
_MANY = 16
_FIRST, _LAST = 2, 1


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The plan of a job. ``print(plan)`` shows the plan as text, and a notebook shows the plan as HTML.

    Text and HTML show secrets as ``***``. If the job has more than 16 hosts, only the first two hosts and the last host
    are shown. The same limit applies to the processes of each host. ``print(plan.text(whole=True))`` shows everything,
    and :meth:`to_dict` returns everything as data.

    Attributes:
        spec: The job.
        options: The run options of the job.
        plan: The processes of every host, as data.
        entry_points: A mapping from the name of each host to the command that starts the host's toolkit or container.
            The toolkit then starts the host's processes.
        gpus: The number of GPUs of each host. If all hosts share one machine, the number of GPUs of this machine.
        preparations: The commands that would run before the hosts start, such as the command that creates the
            containers' network.
        warnings: Warnings about the job, for the user to read before the job runs.
    """

    spec: TrainingJobSpec
    options: JobOptions
    plan: Plan
    entry_points: Mapping[str, tuple[str, ...]]
    gpus: int = 0
    preparations: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def request(self) -> dict[str, Any]:
        """Return the CreateTrainingJob request."""
        return self.spec.to_request()

    @property
    def hosts(self) -> tuple[HostPlan, ...]:
        """Return the plan of each host, in rank order."""
        return self.plan.hosts

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """Return the processes of all hosts as one tuple, in the order of the hosts."""
        return self.plan.processes

    @property
    def devices(self) -> int:
        """Return the total number of GPUs of all hosts, including GPUs that the strategy does not use."""
        return self.gpus * (1 if self._capabilities.shared_machine else len(self.hosts))

    def devices_of(self, process: ProcessPlan) -> tuple[int, ...]:
        """Return the indices of the GPUs that a process trains on. The GPUs of each host are numbered from 0.

        The indices apply to scripts that call ``distributed.init()``. Other scripts see all GPUs of the host, and
        decide by themselves which GPUs to use.
        """
        strategy = self.spec.strategy
        if not self.gpus or process.role is not Role.RANK or strategy is None:
            return ()
        if isinstance(strategy, Mirrored):
            return tuple(range(strategy.devices or self.gpus))
        if process.name in ("chief", "master"):
            return (0,)
        if isinstance(strategy, ParameterServer):  # each host has one worker
            place = 0
            if self._one_machine:
                config = self.tf_config(process.host, process.name) or {"task": {"index": 0}}
                place = int(config["task"]["index"])
        else:
            place = int((process.rank if self._one_machine else process.local_rank) or 0)
        hosts = len(self.hosts)
        # If the machine has at least as many GPUs as containers, each container sees only its share of the GPUs.
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
        """Return the ranks in the order of the all-reduce ring, or an empty tuple if the strategy has no ring.

        Each rank sends to the next rank, and the last rank sends to the first rank. TensorFlow, and Horovod with Gloo,
        use this ring. NCCL and MPI may use other orders.
        """
        strategy = self.spec.strategy
        if strategy is None or not strategy.all_reduce or len(self.plan.ranks) < 2:
            return ()
        return self.plan.ranks

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes about the job for the user, such as the number of GPUs and the order of the all-reduce ring."""
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
        for host in _few(self.hosts):
            if host is None:
                pieces.append("…")
                continue
            here = [process for process in host.processes if process.role is Role.RANK]
            ranks = [process.rank for process in here if process.rank is not None]
            gpus = [device for process in here for device in self.devices_of(process)]
            piece = f"{host.name} rank{_span(ranks)}"
            pieces.append(f"{piece} (GPU{_span(gpus)})" if gpus else piece)
        return " → ".join([*pieces, f"back to {self.hosts[0].name}"])

    @property
    def mpirun(self) -> tuple[str, ...] | None:
        """Return the mpirun command line as a tuple of arguments, or None if the strategy does not use mpirun."""
        return self.plan.mpirun

    def environment(self, host: str, process: str | None = None) -> dict[str, str]:
        """Return the environment variables of a host, or of one of the host's processes.

        The host's variables are the user's variables and SageMaker's ``SM_*`` variables. A process has these variables
        and its own variables.

        Raises:
            KeyError: the job has no such host or process.
        """
        planned = self._by_name.get(host)
        if planned is None:
            raise KeyError(f"there is no host {host!r}; hosts: {_names(self.plan.membership.names)}")
        shared = dict(planned.environment)
        if process is None:
            return shared
        for item in planned.processes:
            if item.name == process:
                return {**shared, **item.environment}
        raise KeyError(
            f"{host} has no process {process!r}; its processes: {_names([item.name for item in planned.processes])}"
        )

    @functools.cached_property
    def _by_name(self) -> dict[str, HostPlan]:
        return {host.name: host for host in self.hosts}

    def tf_config(self, host: str, process: str) -> dict[str, Any] | None:
        """Return a process's decoded ``TF_CONFIG``, the variable that describes the cluster to TensorFlow.

        Return None if the process has no ``TF_CONFIG``.
        """
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
                    "environment": mask_mapping(host.environment),
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
        width = terminal_width()
        return prose(self.text(width=width), width)

    def text(self, *, whole: bool = False, width: int | None = None) -> str:
        """Return the plan as text, with secrets masked.

        Args:
            whole: Whether to show every host, every process and every command in full. By default, the text is a
                summary.
            width: The width at which commands are wrapped, in columns. At most 110 columns are used.
        """
        width = min(width or _WIDTH, _WIDTH)
        lines = [self._title(), *(f"warning: {warning}" for warning in self.warnings)]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"first: {_line(command)}" for command in self.preparations]
        for host in self.hosts if whole else _few(self.hosts):
            if host is None:
                lines += ["", f"({_left_out(self.hosts, 'hosts')}; text(whole=True) shows them)"]
                continue
            lines += ["", host.name, f"  entry point: {_line(self.entry_points[host.name])}"]
            for process in host.processes if whole else _few(host.processes):
                if process is None:
                    lines.append(f"  ({_left_out(host.processes, 'processes')})")
                else:
                    lines += _process_text(process, self.devices_of(process), width, whole=whole)
            lines.append(self._environment_title(host))
            for name, value in self._shown_environment(host).items():
                lines.append(f"    {name}={_short(value)}")
        if self._capabilities.managed:
            request = json.dumps(mask_request(self.request), indent=2, ensure_ascii=False)
            lines += ["", "request (CreateTrainingJob):", request]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.text())}</pre>"

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
            first = self.hosts[0].environment
            environment = {name: value for name, value in environment.items() if first.get(name) != value}
        return {name: mask_value(name, environment[name]) for name in sorted(environment)}


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
    """Return numbers as text to append to a singular noun, such as `` 3``, ``s 0–7`` or ``s 0, 2``."""
    if len(numbers) < 2:
        return f" {numbers[0]}" if numbers else "s none"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"s {numbers[0]}–{numbers[-1]}"
    return f"s {', '.join(map(str, numbers))}"


def _process_text(process: ProcessPlan, gpus: tuple[int, ...], width: int, *, whole: bool) -> list[str]:
    lines = [f"  {_process_title(process, gpus)}:"]
    lines += textwrap.wrap(
        _line(process.argv if whole else _summary(process)),
        width,
        initial_indent="    ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or ["    "]
    lines += [f"    {name}={_short(value)}" for name, value in mask_mapping(process.environment).items()]
    return lines


def _few(items: Sequence[_Item]) -> Iterator[_Item | None]:
    """Yield the items that a summary shows.

    If the summary leaves out items in the middle, yield one None in their place.
    """
    if len(items) <= _MANY:
        yield from items
        return
    yield from items[:_FIRST]
    yield None
    yield from items[-_LAST:]


def _left_out(items: Sequence[HostPlan] | Sequence[ProcessPlan], noun: str) -> str:
    missing = items[_FIRST:-_LAST]
    return f"and {len(missing):,} more {noun}, {missing[0].name} to {missing[-1].name}"


def _names(names: Sequence[str]) -> str:
    return "[" + ", ".join("…" if name is None else repr(name) for name in _few(names)) + "]"


def _summary(process: ProcessPlan) -> tuple[str, ...]:
    """Return a process's command for the summary.

    In an mpirun command, the list of hosts is shortened, because only this list grows with the cluster.
    """
    argv = process.argv
    if process.role is not Role.LAUNCHER or "--host" not in argv:
        return argv
    place = argv.index("--host") + 1
    hosts = argv[place].split(",")
    shown = ",".join("…" if host is None else host for host in _few(hosts))
    return (*argv[:place], shown, *argv[place + 1 :])


def _line(argv: tuple[str, ...]) -> str:
    return shell_line(mask_argv(argv))


def _short(value: Any, *, most: int = _SHOWN) -> str:
    text = str(value).replace("\n", "\\n")
    return text if len(text) <= most else f"{text[: most - 1]}… ({len(text)} characters)"
