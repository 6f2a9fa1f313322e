"""Run hosts as processes on this machine, without installation, root or containers.

Each host is one process ``python -m container train`` with its own file tree below the job's record. The hosts connect
to each other over the loopback interface, and authenticate with a token that is created for the job.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from container.system.running import Runner
from estimators.backends import config
from estimators.backends.hosts.provider import Finding, Host, HostProvider, ProvidedJob
from estimators.backends.placement import ClusterPlacement, on_this_machine
from estimators.job import fleets
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions, TrainingJobSpec


class ProcessProvider(HostProvider):
    """A provider of hosts that are processes. Such hosts are available at once."""

    name: ClassVar[str] = fleets.PROCESSES
    capabilities: ClassVar[fleets.Capabilities] = fleets.FLEETS[fleets.PROCESSES].capabilities

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job)
        self._runner = Runner(job.loop, config.caller_environment(os.environ), protected=job.protected)

    async def acquire(self, name: str) -> Host:
        """Create and return the host."""
        from estimators.backends.hosts.here import LocalHost

        return LocalHost(self._runner, self.job.backend, name)

    def close(self) -> None:
        """Close the runner. The runner removes the folder of the importers, the processes that fork the hosts'
        ranks.
        """
        self._runner.close()

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse any option in ``backend_options``, because the provider has no options. Return an empty list.

        Raises:
            ConfigurationError: ``backend_options`` contains an option.
        """
        for name in options.backend_options:
            raise ConfigurationError(
                f"backend_options: {name!r} is unknown, because instance_type {cls.name!r} has no options. Leave "
                "backend_options out, or use another instance_type, such as 'local' for containers."
            )
        return []

    @classmethod
    def placement(cls, spec: TrainingJobSpec, options: RunOptions, record: Path) -> ClusterPlacement:
        """Return the placement of hosts that are processes on this machine."""
        cls.validate(spec, options)
        return on_this_machine(spec, options, record)

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Return a finding for ``fleetfit doctor``: processes on this machine need no installation."""
        return [Finding(name=cls.name, ok=True, text="processes on this machine, nothing to install")]
