"""What would be started, shown before anything is: a summary for people, every process as data."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from container.contract.plan import HostPlan, Plan, ProcessPlan, Role, StartedBy, shell_line
from container.contract.strategies import Mirrored, ParameterServer
from estimators.job import fleets, instances
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.job.secrets import mask_argv, mask_mapping, mask_request, mask_value

TF_CONFIG = "TF_CONFIG"

_Item = TypeVar("_Item")

#: How many characters of a variable's value the text shows; the data has it whole.
_SHOWN = 200
_SHOWN_ON_PAGE = 2000  # of a host's variables, in a table that one opens
_WIDTH = 110
#: How many hosts, and processes of a host, a summary shows before it leaves out the middle, and how many then.
_MANY = 16
_FIRST, _LAST = 2, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """What a job would start. ``print(plan)`` shows it as text, a notebook as HTML; both show secrets as ``***``.

    If there are more than 16 hosts, or more than 16 processes on a host, only the first two and the last one are shown.
    ``print(plan.text(whole=True))`` shows all, and :meth:`to_dict` returns all as data.

    Attributes:
        spec: The job.
        options: The run options of the job.
        plan: The processes of every host, as data.
        entry_points: Host -> the command that starts its toolkit or container.
        gpus: Number of GPUs of each host; if all hosts are on one machine, the number of GPUs of this machine.
        preparations: The commands that would run first, such as for the network of containers.
        warnings: What the user should know before the job runs.
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
        """The CreateTrainingJob request."""
        return self.spec.to_request()

    @property
    def hosts(self) -> tuple[HostPlan, ...]:
        """What each host would run, in rank order."""
        return self.plan.hosts

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """Every process, host by host."""
        return self.plan.processes

    @property
    def devices(self) -> int:
        """Number of GPUs of all hosts together, whether or not the strategy uses them."""
        return self.gpus * (1 if self._capabilities.shared_machine else len(self.hosts))

    def devices_of(self, process: ProcessPlan) -> tuple[int, ...]:
        """Return the numbers of the GPUs that a process trains on, counted on its host.

        This is for scripts that call ``distributed.init()``. Other scripts see all GPUs, and choose by themselves.
        """
        strategy = self.spec.strategy
        if not self.gpus or process.role is not Role.RANK or strategy is None:
            return ()
        if isinstance(strategy, Mirrored):
            return tuple(range(strategy.devices or self.gpus))
        if process.name in ("chief", "master"):
            return (0,)
        if isinstance(strategy, ParameterServer):  # one worker on each host
            place = 0
            if self._one_machine:
                config = self.tf_config(process.host, process.name) or {"task": {"index": 0}}
                place = int(config["task"]["index"])
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
        """The ranks in the order of the all-reduce ring; the last rank sends to the first. Empty without a ring.

        This is the ring of TensorFlow, and of Horovod with Gloo. NCCL and MPI may choose other orders.
        """
        strategy = self.spec.strategy
        if strategy is None or not strategy.all_reduce or len(self.plan.ranks) < 2:
            return ()
        return self.plan.ranks

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the run: the devices, the ring."""
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
        """The mpirun command line as an argv list; None for a strategy without one."""
        return self.plan.mpirun

    def environment(self, host: str, process: str | None = None) -> dict[str, str]:
        """Return the environment variables (the user's and ``SM_*``) of a host, or of one of its processes.

        Raises:
            KeyError: there is no such host or process.
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
        """Return the decoded TF_CONFIG of a process; None if the strategy needs none."""
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
        return self.text()

    def text(self, *, whole: bool = False) -> str:
        """Return the plan as text, with secrets masked.

        Args:
            whole: Whether to show every host, every process and every command in full, instead of a summary.
        """
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
                    lines += _process_text(process, self.devices_of(process), whole=whole)
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
    """`` 3``, ``s 0–7`` or ``s 0, 2``, behind a word in the singular."""
    if len(numbers) < 2:
        return f" {numbers[0]}" if numbers else "s none"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"s {numbers[0]}–{numbers[-1]}"
    return f"s {', '.join(map(str, numbers))}"


def _process_text(process: ProcessPlan, gpus: tuple[int, ...], *, whole: bool) -> list[str]:
    lines = [f"  {_process_title(process, gpus)}:"]
    lines += textwrap.wrap(
        _line(process.argv if whole else _summary(process)),
        _WIDTH,
        initial_indent="    ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or ["    "]
    lines += [f"    {name}={_short(value)}" for name, value in mask_mapping(process.environment).items()]
    return lines


def _few(items: Sequence[_Item]) -> Iterator[_Item | None]:
    """Yield the items that a summary shows; None in place of those of the middle that it leaves out."""
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
    """Return a command with mpirun's list of many hosts, the one word that grows with the cluster, shortened."""
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
