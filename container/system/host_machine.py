"""Describe this machine for the plan of a job's processes: the Python, the cores, the GPUs and mpirun."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from container.contract import variables
from container.contract.environment import Machine, hosts_here
from container.system import machine, openmpi


def this_machine(*, with_mpi: bool = False) -> Machine:
    """Return the description of the machine that this process runs on.

    Args:
        with_mpi: Whether to look for mpirun and its version, which takes some milliseconds.
    """
    mpirun = openmpi.find_mpirun() if with_mpi else None
    return Machine(
        python=sys.executable,
        cpus=cpu_count(),
        gpus=gpu_count(),
        mpirun=mpirun,
        mpi_major=openmpi.mpi_major(mpirun) if mpirun else 4,
        shared=os.environ.get(variables.SHARED_MACHINE) == "1",
        hosts_here=hosts_here(os.environ),
        container_package=str(Path(__file__).resolve().parents[1]),
    )


def cpu_count() -> int:
    """Return the number of cores that this process may use. A container's limit on processor time is taken into
    account.
    """
    return machine.cores()


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs that this process sees, without starting a program."""
    return len(machine.gpus())


def identity() -> str:
    """Return a text that identifies this machine: the boot id, the network namespace and the host name.

    Each container and each network namespace counts as a separate machine. Return an empty text if the kernel does not
    provide these facts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')} {socket.gethostname()}"
    except OSError:
        return ""
