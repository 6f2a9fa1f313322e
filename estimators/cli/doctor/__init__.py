"""Report installed software, missing parts of strategies and backends, and remedies (command ``fleetfit doctor``).

The command is quick because it imports no packages and starts hardly any process. Versions are read from the metadata
of the installed packages. Only with ``deep``, new processes import Horovod with its frameworks, and run mpirun.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from container.system import openmpi
from estimators.cli.doctor import installed, places, running
from estimators.cli.doctor.findings import DoctorReport, ReportLine, Verdict
from estimators.records.provenance import packages

__all__ = ["DoctorReport", "ReportLine", "Verdict", "diagnose"]


def diagnose(
    *,
    python: str = sys.executable,
    deep: bool = False,
    hosts: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> DoctorReport:
    """Check this machine and the packages of this Python, and return the report.

    Args:
        python: The interpreter. Programs are first searched in the interpreter's folder.
        deep: Whether to also import Horovod and each of its frameworks in new processes, and to start two ranks with
            mpirun. These checks take some seconds.
        hosts: Whether to also log in to the machines that jobs reach by ssh, and to check whether these machines reach
            each other.
        environment: The environment variables. PATH and the variables for visible devices are used.
    """
    found = packages.versions((*packages.DISTRIBUTIONS, *(package for _, package, _, _ in installed.EXTRAS), "docker"))
    found_mpirun = openmpi.find_mpirun(python, environment.get("PATH"))
    mpirun = Path(found_mpirun) if found_mpirun else None
    mpi = openmpi.mpirun_version(found_mpirun) if found_mpirun else None
    tensorflow = installed.tensorflow(found)
    torch = installed.torch(found)
    keras = installed.keras(found, environment)
    mpi_line = installed.openmpi(mpirun, mpi)
    sites = packages.site_folders()
    horovod = installed.horovod(found, sites, mpirun)
    if tensorflow.state is Verdict.ABSENT and mpirun is None and "horovod" not in found:
        # PyTorch alone trains without both
        mpi_line = dataclasses.replace(mpi_line, state=Verdict.ABSENT)
        horovod = dataclasses.replace(horovod, state=Verdict.ABSENT)
    findings = [
        installed.python(),
        installed.fleetfit(found),
        tensorflow,
        torch,
        keras,
        mpi_line,
        horovod,
        installed.pipe_reader(Path(sys.prefix)),
        installed.compiler(environment),
        *installed.extras(found, environment),
    ]
    if deep:
        frameworks = installed.horovod_frameworks(found, sites) if horovod.state is not Verdict.MISSING else []
        tried = [running.horovod(python, framework, frameworks) for framework in frameworks]
        findings += tried
        if tried and all(deeper.state is Verdict.MISSING for deeper in tried):
            horovod = tried[0]
        if mpirun is not None:
            started = running.mpirun(mpirun, python)
            mpi_line = started if started.state is Verdict.MISSING else mpi_line
            findings.append(started)
    strategies = places.strategies(tensorflow, torch, keras, mpi_line, horovod)
    return DoctorReport(
        software=tuple(findings),
        machine=places.machine(environment),
        strategies=strategies,
        backends=(*places.backends(environment, found), *(places.ssh_hosts() if hosts else ())),
        remarks=_remarks(),
    )


def _remarks() -> tuple[str, ...]:
    return (
        "The servers of TensorFlow (parameter servers, CollectiveAllReduce) listen on all network interfaces and "
        "have no authentication. While a job runs, anyone who can reach a server's port can run code as you. On a "
        "machine that others can reach, close these ports with a firewall, or run these strategies in a network "
        "namespace.",
        "PyTorch's store, which connects the ranks of torch_distributed, also has no authentication: anyone who can "
        "reach the store's port can disturb the ranks.",
        "Job records hold your code, arguments and logs in folders that only you can read; `fleetfit clean` removes "
        "old records.",
    )
