"""Compares what a job asks of this machine with what the machine has, before anything starts.

A job that asks for more than there is may still run, slowly, and is warned of; a job that cannot run at all is refused.
Each text names the numbers and a remedy. :func:`compare` and :func:`refusal` are pure functions of two values;
:func:`preflight` and :func:`check_fits` make them from a job and from this machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.strategies import Mirrored
from container.system import machine as machines
from container.system.machine import MachineFacts, format_bytes
from estimators.job import fleets, instances
from estimators.job.errors import UnsupportedError

if TYPE_CHECKING:
    from estimators.job.request import RunOptions, TrainingJobSpec

#: Resident memory of a process that has imported TensorFlow 2.21 and built a small model; real models add to it.
PROCESS_BYTES = 600_000_000
#: The least memory of a host with a script that imports nothing, in bytes: of its toolkit, and of each process with its
#: wrapper. Measured by /proc/PID/smaps_rollup (Pss) with 40 hosts on one machine, Python 3.11.
HOST_BYTES, SCRIPT_BYTES = 12_000_000, 8_000_000
#: Descriptors that the supervisor has open for each host of its own machine, and processes that a host has at least.
FILES_PER_HOST, PROCESSES_PER_HOST, PROCESSES_PER_RANK = 4, 1, 2
#: OpenMPI's shared-memory transport maps this much of /dev/shm per rank (``btl_vader_segment_size`` and fast boxes).
SHM_BYTES_PER_RANK = 8_000_000
#: Room that a record needs for logs, checkpoints and the model of even a small job.
DISK_BYTES = 1_000_000_000
#: Descriptors of a launcher: a few of its own, and for each rank its output pipes, events and sockets.
FILES_BASE = 128
FILES_PER_RANK = 16
#: Threads of a TensorFlow process beyond its pools (gRPC, Horovod's background thread, OpenMPI's progress).
THREADS_PER_RANK = 24

#: Variables that set how many threads a process computes with; the first that is set counts.
_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demand:
    """What a job asks of one machine.

    Attributes:
        hosts: How many hosts of the cluster are on this machine.
        processes_per_host: Ranks on each of them.
        servers_per_host: Further processes on each, such as a parameter server.
        strategy: Name of the strategy; None for none.
        threads_per_rank: Threads that the user asked for in each rank; None leaves it to the launcher, which divides
            the cores among the ranks.
        threads_variable: The variable that says so.
        wants_gpu: Whether the instance type asks for GPUs.
    """

    hosts: int = 1
    processes_per_host: int = 1
    servers_per_host: int = 0
    strategy: str | None = None
    threads_per_rank: int | None = None
    threads_variable: str | None = None
    wants_gpu: bool = False

    @property
    def ranks(self) -> int:
        """Processes on this machine that run the user's script."""
        return self.hosts * self.processes_per_host

    @property
    def processes(self) -> int:
        """All processes on this machine that load TensorFlow."""
        return self.ranks + self.hosts * self.servers_per_host

    @classmethod
    def of(cls, spec: TrainingJobSpec) -> Demand:
        """Return what a job asks of the machine that it is started on; hosts of a local job share it."""
        strategy = spec.strategy
        threads, variable = _threads(spec.environment)
        return cls(
            hosts=spec.instance_count,
            processes_per_host=strategy.ranks_per_host if strategy is not None else 1,
            servers_per_host=1 if strategy is not None and strategy.name == "parameter_server" else 0,
            strategy=strategy.name if strategy is not None else None,
            threads_per_rank=threads,
            threads_variable=variable,
            wants_gpu=fleets.capabilities(spec.instance_type).needs_gpus,
        )


def preflight(
    spec: TrainingJobSpec,
    options: RunOptions | None = None,
    *,
    machine: MachineFacts | None = None,
    home: str | Path | None = None,
) -> list[str]:
    """Warnings about a job on this machine; none for a job that runs elsewhere.

    Args:
        spec: The job.
        options: How it is run (nothing of it matters yet).
        machine: Instead of this machine's facts.
        home: Where records are kept, for the disk's space. Default: ``$FLEETFIT_HOME``.

    Returns:
        One text per warning: what is short, by how much, and the remedy.
    """
    capabilities = fleets.capabilities(spec.instance_type)
    if not capabilities.shared_machine or capabilities.simulated:
        return []
    from estimators.records.record import jobs_folder

    folder = jobs_folder(home)
    return compare(
        Demand.of(spec),
        machine if machine is not None else machines.facts(),
        disk_free_bytes=machines.free_bytes(folder),
        disk=folder,
    )


def check_fits(spec: TrainingJobSpec, machine: MachineFacts | None = None) -> None:
    """Refuse a job that this machine cannot start.

    Args:
        spec: The job.
        machine: Instead of this machine's facts.

    Raises:
        UnsupportedError: with the numbers, and how many hosts there can be.
    """
    capabilities = fleets.capabilities(spec.instance_type)
    if not capabilities.shared_machine or capabilities.simulated:
        return
    found = machine if machine is not None else machines.facts()
    if capabilities.containers:  # which have limits of their own
        found = dataclasses.replace(found, processes_limit=None, open_files_hard_limit=None)
    text = refusal(Demand.of(spec), found)
    if text is not None:
        raise UnsupportedError(f"instance_type {spec.instance_type!r}: {text}")


def refusal(demand: Demand, machine: MachineFacts) -> str | None:
    """Return why a machine cannot start a job at all; None if it can.

    Args:
        demand: What the job asks for.
        machine: What there is.
    """
    each = demand.processes_per_host + demand.servers_per_host
    needed = {
        "memory": (HOST_BYTES + each * SCRIPT_BYTES, machine.memory_bytes),
        "open files": (FILES_PER_HOST, machine.open_files_hard_limit),
        "processes": (PROCESSES_PER_HOST + each * PROCESSES_PER_RANK, machine.processes_limit),
    }
    most = min((limit // per_host for per_host, limit in needed.values() if limit), default=demand.hosts)
    for name, (per_host, limit) in needed.items():
        if not limit or per_host * demand.hosts <= limit:  # a machine that does not say its memory has 0
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
    """What the machine is short of, most serious first.

    Args:
        demand: What the job asks for.
        machine: What there is.
        disk_free_bytes: Free space where the record will be; None if unknown.
        disk: That folder, for the text.
    """
    warnings = [
        _memory(demand, machine),
        _disk(disk_free_bytes, disk),
        _cores(demand, machine),
        _thread_pools(demand, machine),
        _gpu(demand, machine),
        _shared_memory(demand, machine),
        _open_files(demand, machine),
        _process_count(demand, machine),
    ]
    return [warning for warning in warnings if warning is not None]


def _memory(demand: Demand, machine: MachineFacts) -> str | None:
    needed = demand.processes * PROCESS_BYTES
    if needed <= machine.memory_available_bytes:
        return None
    return (
        f"{_count(demand.processes, 'process', 'processes')} of TensorFlow need about {format_bytes(needed)} of "
        f"memory without the model and the data, but only {format_bytes(machine.memory_available_bytes)} of "
        f"{format_bytes(machine.memory_bytes)} are available. The kernel may kill a rank. Use fewer processes or "
        "hosts, or end other programs."
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


def _thread_pools(demand: Demand, machine: MachineFacts) -> str | None:
    threads = demand.threads_per_rank
    if threads is None or demand.ranks > machine.cores or threads * demand.ranks <= machine.cores:
        return None
    best = max(1, machine.cores // demand.ranks)
    return (
        f"{demand.threads_variable}={threads} in {_count(demand.ranks, 'rank')} makes {threads * demand.ranks} threads "
        f"on {_count(machine.cores, 'core')}, which slows all ranks down. Set {demand.threads_variable}={best}, or "
        "leave the variable out: each rank then gets its share of the cores."
    )


def idle_devices(spec: TrainingJobSpec) -> str | None:
    """Return what to say of a job on SageMaker that starts fewer processes than its instances have GPUs."""
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


def _shared_memory(demand: Demand, machine: MachineFacts) -> str | None:
    needed = demand.ranks * SHM_BYTES_PER_RANK
    if demand.strategy != "mpi" or demand.ranks < 2 or machine.shm_free_bytes is None:
        return None
    if machine.shm_free_bytes >= needed:
        return None
    return (
        f"/dev/shm has {format_bytes(machine.shm_free_bytes)} free, and OpenMPI uses about {format_bytes(needed)} "
        f"for {_count(demand.ranks, 'rank')}: MPI_Init may fail with a bus error. Remove files from /dev/shm, "
        "raise --shm-size if this is a container, or add '-mca btl ^vader' to custom_mpi_options."
    )


def _open_files(demand: Demand, machine: MachineFacts) -> str | None:
    needed = FILES_BASE + FILES_PER_RANK * demand.processes
    limit = machine.open_files_limit
    if limit is None or limit >= needed:
        return None
    hard = machine.open_files_hard_limit
    if hard is None or hard >= needed:
        remedy = f"Run `ulimit -n {needed}` first."
    else:
        remedy = f"The hard limit is {hard}: have it raised (/etc/security/limits.conf), or use fewer processes."
    return (
        f"a process may open {limit} files (`ulimit -n`), but {_count(demand.processes, 'process', 'processes')} need "
        f"about {needed}. {remedy}"
    )


def _process_count(demand: Demand, machine: MachineFacts) -> str | None:
    if machine.processes_limit is None:
        return None
    # Each process has an intra-op and an inter-op pool, each as large as the cores it was given.
    pools = 2 * max(1, demand.threads_per_rank or machine.cores // max(1, demand.ranks))
    needed = demand.processes * (THREADS_PER_RANK + pools)
    room = machine.processes_limit - (machine.processes_used or 0)
    if room >= needed:
        return None
    return (
        f"the job needs about {needed} processes and threads, but {max(0, room)} more are allowed (`ulimit -u`, or the "
        "control group's pids.max). End other programs, use fewer processes, or have the limit raised."
    )


def _threads(environment: Mapping[str, Any]) -> tuple[int | None, str | None]:
    for name in _THREAD_VARIABLES:
        text = str(environment.get(name, "")).strip()
        if text.isdigit() and int(text) > 0:
            return int(text), name
    return None, None


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
