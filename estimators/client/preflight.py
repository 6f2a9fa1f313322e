"""Compare the resources that a job needs on this machine with the available resources, before the job starts.

If a job needs more than is available but may still run slowly, :func:`preflight` returns a warning. If the machine
cannot run the job at all, :func:`check_fits` raises an error. Each message states the needed and the available amount,
and a remedy. The functions :func:`compare` and :func:`refusal` produce the messages from a :class:`Demand` and the
machine's resources, without access to this machine.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from container.contract.frozen import dataclass
from container.contract.strategies import Mirrored
from container.system import machine as machines
from container.system.machine import MachineFacts, format_bytes
from estimators.job import fleets, instances
from estimators.job.errors import UnsupportedError

if TYPE_CHECKING:
    from estimators.job.request import TrainingJobSpec

#: Resident memory of a process that has imported TensorFlow 2.21 and built a small model, in bytes. Models need more.
PROCESS_BYTES = 600_000_000
#: Minimum memory in bytes of a host's toolkit, which starts the processes, and of each process with its wrapper, if the
#: script imports nothing. Measured by /proc/PID/smaps_rollup (Pss) with 40 hosts on one machine, Python 3.11.
HOST_BYTES, SCRIPT_BYTES = 12_000_000, 8_000_000
#: Number of open files that the supervisor needs for each host, and minimum number of processes of each host and of
#: each rank.
FILES_PER_HOST, PROCESSES_PER_HOST, PROCESSES_PER_RANK = 4, 1, 2
#: Disk space in bytes that the record of a small job needs for logs, checkpoints and the model.
DISK_BYTES = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The resources that a job needs on one machine.

    Attributes:
        hosts: The number of hosts on the machine.
        processes_per_host: The number of ranks on each host.
        servers_per_host: The number of other processes on each host, such as parameter servers.
        strategy: The name of the strategy, or None if the job has no strategy.
        wants_gpu: Whether the instance type requires GPUs.
    """

    hosts: int = 1
    processes_per_host: int = 1
    servers_per_host: int = 0
    strategy: str | None = None
    wants_gpu: bool = False

    @property
    def ranks(self) -> int:
        """Return the number of processes on this machine that run the user's script."""
        return self.hosts * self.processes_per_host

    @property
    def processes(self) -> int:
        """Return the number of processes on this machine that load TensorFlow."""
        return self.ranks + self.hosts * self.servers_per_host

    @classmethod
    def of(cls, spec: TrainingJobSpec) -> Demand:
        """Return the resources that a job needs if all its hosts are on this machine."""
        strategy = spec.strategy
        return cls(
            hosts=spec.instance_count,
            processes_per_host=strategy.ranks_per_host if strategy is not None else 1,
            servers_per_host=1 if strategy is not None and strategy.name == "parameter_server" else 0,
            strategy=strategy.name if strategy is not None else None,
            wants_gpu=fleets.capabilities(spec.instance_type).needs_gpus,
        )


def preflight(spec: TrainingJobSpec) -> list[str]:
    """Return warnings if this machine has few resources for a job.

    Return an empty list if the job runs on other machines.

    Returns:
        One text for each warning. The text names the scarce resource, the missing amount and the remedy.
    """
    capabilities = fleets.capabilities(spec.instance_type)
    if not capabilities.shared_machine or capabilities.simulated:
        return []
    from estimators.records.record import jobs_folder

    folder = jobs_folder()
    return compare(Demand.of(spec), machines.facts(), disk_free_bytes=machines.free_bytes(folder), disk=folder)


def check_fits(spec: TrainingJobSpec) -> None:
    """Check that this machine can start a job.

    Raises:
        UnsupportedError: the machine cannot start the job. The message states the needed and the available amount, and
            the maximum number of hosts.
    """
    capabilities = fleets.capabilities(spec.instance_type)
    if not capabilities.shared_machine or capabilities.simulated:
        return
    found = machines.facts()
    if capabilities.containers:  # these limits of this process do not apply to containers
        found = dataclasses.replace(found, processes_limit=None, open_files_hard_limit=None)
    text = refusal(Demand.of(spec), found)
    if text is not None:
        raise UnsupportedError(f"instance_type {spec.instance_type!r}: {text}")


def refusal(demand: Demand, machine: MachineFacts) -> str | None:
    """Return the reason why a machine cannot start a job at all, or None if the machine can start the job.

    Args:
        demand: The job's demand.
        machine: The machine's resources.
    """
    each = demand.processes_per_host + demand.servers_per_host
    needed = {
        "memory": (HOST_BYTES + each * SCRIPT_BYTES, machine.memory_bytes),
        "open files": (FILES_PER_HOST, machine.open_files_hard_limit),
        "processes": (PROCESSES_PER_HOST + each * PROCESSES_PER_RANK, machine.processes_limit),
    }
    most = min((limit // per_host for per_host, limit in needed.values() if limit), default=demand.hosts)
    for name, (per_host, limit) in needed.items():
        if not limit or per_host * demand.hosts <= limit:  # 0: unknown memory; None: no limit
            continue
        wanted, there = per_host * demand.hosts, limit
        shown = (format_bytes(wanted), format_bytes(there)) if name == "memory" else (f"{wanted:,}", f"{there:,}")
        what = f"{_count(demand.hosts, 'host')} with {_count(each, 'process', 'processes')} each"
        where = "on this one machine" if demand.hosts > 1 else "on this machine"
        remedy = f"Use at most {_count(most, 'host')}" if most else "Use fewer processes on each host"
        return (
            f"{what} need at least {shown[0]} {'of memory' if name == 'memory' else name} {where}, which allows "
            f"{shown[1]}. {remedy}, or other machines (instance_type 'ssh', 'slurm', 'ray', an EC2 or SageMaker type)."
        )
    return None


def compare(
    demand: Demand, machine: MachineFacts, *, disk_free_bytes: int | None = None, disk: Path | None = None
) -> list[str]:
    """Return warnings about scarce resources. The most serious warning is first.

    Args:
        demand: The job's demand.
        machine: The machine's resources.
        disk_free_bytes: The free space in the folder for the record, in bytes, or None if unknown.
        disk: The folder for the record, which the message names.
    """
    warnings = [
        _memory(demand, machine),
        _disk(disk_free_bytes, disk),
        _cores(demand, machine),
        _gpu(demand, machine),
    ]
    return [warning for warning in warnings if warning is not None]


def _memory(demand: Demand, machine: MachineFacts) -> str | None:
    needed = demand.processes * PROCESS_BYTES
    if needed <= machine.memory_available_bytes:
        return None
    return (
        f"{_count(demand.processes, 'process needs', 'processes need')} about {format_bytes(needed)} of memory to load "
        f"TensorFlow or PyTorch, without the model and the data, but only "
        f"{format_bytes(machine.memory_available_bytes)} of {format_bytes(machine.memory_bytes)} are available. The "
        "kernel may kill a rank. Use fewer processes or hosts, or end other programs."
    )


def _disk(free: int | None, folder: Path | None) -> str | None:
    if free is None or free >= DISK_BYTES:
        return None
    place = f" under {folder}" if folder is not None else ""
    return (
        f"only {format_bytes(free)} are free for logs, checkpoints and the model{place}. Remove old jobs with "
        "`fleetfit clean --free 5G`, or set FLEETFIT_HOME to a folder on another disk."
    )


def _cores(demand: Demand, machine: MachineFacts) -> str | None:
    if demand.ranks <= machine.cores:
        return None
    share = f"{demand.hosts} × {demand.processes_per_host} = " if demand.hosts > 1 < demand.processes_per_host else ""
    text = (
        f"{share}{_count(demand.ranks, 'rank')} on {_count(machine.cores, 'core')}: ranks share cores, so the job will "
        "be slower than with fewer ranks"
    )
    if demand.strategy == "mpi":
        text += " (mpirun is run with --oversubscribe)"
    if machine.cores < machine.cores_of_machine:
        why = "the control group's quota" if machine.cpu_quota is not None else "the CPU affinity"
        text += f"; {why} leaves {machine.cores} of the machine's {machine.cores_of_machine} cores"
    return f"{text}. For speed, use at most {_count(machine.cores, 'rank')}. For a test run, more ranks are fine."


def idle_devices(spec: TrainingJobSpec) -> str | None:
    """Return a warning if a job on SageMaker starts fewer processes than its instances have GPUs.

    Return None otherwise.
    """
    gpus, strategy = instances.gpus(spec.instance_type), spec.strategy
    each = strategy.ranks_per_host if strategy is not None else 1
    if gpus <= each or isinstance(strategy, Mirrored) or spec.program is None:
        return None
    hosts = spec.instance_count
    if strategy is not None and strategy.all_reduce:
        remedy = f"processes_per_host={gpus} gives each GPU a process"
    else:
        remedy = f"MPI(processes_per_host={gpus}) and CollectiveAllReduce(processes_per_host={gpus}) use all GPUs"
        remedy += ", and so does Mirrored()" if hosts == 1 else ""
    return (
        f"{hosts} × {each} = {_count(hosts * each, 'process', 'processes')} for {hosts} × {gpus} = {hosts * gpus} "
        f"GPUs of {spec.instance_type}. With distributed.init() or Horovod, each process uses one GPU. {remedy}. "
        "(Ignore this if the script itself uses several GPUs in one process.)"
    )


def _gpu(demand: Demand, machine: MachineFacts) -> str | None:
    if demand.wants_gpu and demand.processes_per_host > len(machine.gpus) > 0:
        return (
            f"{_count(demand.processes_per_host, 'rank')} per host share {_count(len(machine.gpus), 'GPU')}. For "
            f"speed, set processes_per_host={len(machine.gpus)}: each rank then has a GPU of its own."
        )
    return None


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
