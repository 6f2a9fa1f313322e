"""Hosts as processes on this machine: nothing to install, no root, no containers.

Each host is one ``python -m container train`` with a file tree of its own under the record; the control connection
between them runs over loopback with a token made for the job.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from container.system.running import Runner
from estimators.backends import config
from estimators.backends.hosts.cluster import HostCluster
from estimators.backends.hosts.here import LocalHost
from estimators.backends.hosts.provider import Finding, Host, HostProvider, ProvidedJob
from estimators.backends.placement import ClusterPlacement, on_this_machine
from estimators.job import fleets
from estimators.job.request import RunOptions, TrainingJobSpec


class ProcessProvider(HostProvider):
    """Hosts that are there at once.

    Args:
        job: The job.
        cluster: What runs the job on its hosts.
    """

    name: ClassVar[str] = fleets.PROCESSES
    capabilities: ClassVar[fleets.Capabilities] = fleets.FLEETS[fleets.PROCESSES].capabilities

    def __init__(self, job: ProvidedJob, cluster: HostCluster) -> None:
        super().__init__(job)
        self._cluster = cluster
        self._runner = Runner(job.loop, config.caller_environment(os.environ), protected=job.protected)

    async def acquire(self, name: str) -> Host:
        """Return the host at once."""
        return LocalHost(self._runner, self._cluster, name)

    def close(self) -> None:
        """Remove what the hosts have shared."""
        self._runner.close()

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say that it needs nothing."""
        return [Finding(name=cls.name, ok=True, text="processes on this machine, nothing to install")]


class ProcessBackend(HostCluster):
    """Runs the hosts of a job as processes of this machine."""

    name = ProcessProvider.name
    elastic = True
    provider_type = ProcessProvider

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions, record: Path) -> ClusterPlacement:
        """Return that they are here."""
        return on_this_machine(spec, options, record)

    def provide(self, job: ProvidedJob) -> ProcessProvider:
        """Make the provider, whose hosts' files are in the job's record."""
        return ProcessProvider(job, self)
