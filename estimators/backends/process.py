"""Hosts as processes on this machine: nothing to install, no root, no containers.

Each host is one ``python -m container train`` with a file tree of its own under the record; the control connection
between them runs over loopback with a token made for the job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import ClassVar

from container.system.loop import Loop
from container.system.running import Runner
from estimators.backends import config
from estimators.backends.hosts.cluster import HostCluster
from estimators.backends.hosts.here import LocalHost
from estimators.backends.hosts.provider import Finding, Host, Placement
from estimators.job import fleets
from estimators.job.request import RunOptions, TrainingJobSpec


class ProcessProvider:
    """Hosts that are there at once; see :class:`estimators.backends.hosts.provider.HostProvider`."""

    name: ClassVar[str] = fleets.PROCESSES
    capabilities: ClassVar[fleets.Capabilities] = fleets.FLEETS[fleets.PROCESSES].capabilities

    tell: Callable[[str], None]
    protected: set[int]
    limit: Callable[[str], None]
    note: Callable[[Mapping[str, object]], None]

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None:
        #: Makes a host; the backend sets it.
        self.make: Callable[[str], Host]
        self.runner: Runner

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse nothing."""
        return []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say that it is here."""
        return Placement(base_dir=lambda host: f"hosts/{host}/ml", python=options.python, interface="lo")

    def acquire(self, name: str, ready: Callable[[Host], None], failed: Callable[[str], None]) -> None:
        """Call back at once."""
        ready(self.make(name))

    def release(self, host: Host) -> None:
        """Nothing has to be given back."""

    def close(self) -> None:
        """Remove what the hosts have shared."""
        self.runner.close()

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say that it needs nothing."""
        return [Finding(name=cls.name, ok=True, text="processes on this machine, nothing to install")]


class ProcessBackend(HostCluster):
    """Runs the hosts of a job as processes of this machine."""

    name = ProcessProvider.name
    elastic = True
    provider_type = ProcessProvider

    def provide(self) -> ProcessProvider:
        """Make the provider, whose hosts' files are in the job's record."""
        provider = ProcessProvider(self.loop, self.spec, self.options)
        runner = Runner(self.loop, config.caller_environment(os.environ), protected=self.protected)
        provider.runner = runner
        provider.make = lambda name: LocalHost(runner, self, name)
        return provider
