"""The provider: each host is a connection to a process that plays many of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import ClassVar

from container.system.loop import Loop
from estimators.backends.hosts.provider import Finding, Host, Placement
from estimators.backends.hosts.remote import RemoteHost
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec


class LightProvider:
    """Hosts played by the processes that listen at ``backend_options={"sockets": [PATH, …]}``, in turn."""

    name: ClassVar[str] = "light"
    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True)

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None:
        self._loop = loop
        self._job = spec.name
        self._sockets: list[str] = options.backend_options["sockets"]

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse a job without anybody who plays its hosts."""
        return [] if options.backend_options.get("sockets") else ["backend_options needs sockets=[PATH, …]."]

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run."""
        return Placement(base_dir=lambda host: f"/light/{spec.name}/hosts/{host}/ml")

    def acquire(self, name: str, ready: Callable[[Host], None], failed: Callable[[str], None]) -> None:
        """Connect to the next of them."""
        number = int(name.rpartition("-")[2])
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._sockets[number % len(self._sockets)])
        except OSError as error:
            connection.close()
            failed(f"nobody plays it: {error}")
            return
        descriptor = connection.detach()
        RemoteHost(
            self._loop,
            name,
            descriptor,
            descriptor,
            root=f"/light/{self._job}/hosts/{name}",
            address=f"127.{1 + number // 65536}.{number // 256 % 256}.{number % 256}",
            caller_address="127.0.0.1",
            interface="lo",
            ready=ready,
            failed=failed,
        )

    def release(self, host: Host) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """There is nothing to look at."""
        return []
