"""The provider: each host is a connection to a process that plays many of them."""

from __future__ import annotations

import socket
from typing import ClassVar

from estimators.backends.hosts.provider import Host, HostProvider, HostUnavailable, Placement
from estimators.backends.hosts.remote import RemoteHost
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec


class LightProvider(HostProvider):
    """Hosts played by the processes that listen at ``backend_options={"sockets": [PATH, …]}``, in turn."""

    name: ClassVar[str] = "light"
    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True)

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse a job without anybody who plays its hosts."""
        return [] if options.backend_options.get("sockets") else ["backend_options needs sockets=[PATH, …]."]

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run."""
        return Placement(base_dir=f"/light/{spec.name}/hosts/{{host}}/ml")

    async def acquire(self, name: str) -> Host:
        """Connect to the next of them."""
        number = int(name.rpartition("-")[2])
        sockets: list[str] = self.job.options.backend_options["sockets"]
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                # It blocks for a moment: without blocking, Linux refuses when many connect to one socket at once.
                connection.connect(sockets[number % len(sockets)])
            except OSError as error:
                raise HostUnavailable(f"nobody plays it: {error}") from None
            descriptor = connection.detach()
        return await RemoteHost.connect(
            self.loop,
            name,
            descriptor,
            descriptor,
            root=f"/light/{self.spec.name}/hosts/{name}",
            address=f"127.{1 + number // 65536}.{number // 256 % 256}.{number % 256}",
            caller_address="127.0.0.1",
            interface="lo",
        )
