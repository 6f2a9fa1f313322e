"""Hosts whose trees are on this machine, and which containers have as ``/opt/ml``."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from estimators.backends import trees
from estimators.backends.hosts.here import LocalHost, LocalPlatform
from estimators.backends.hosts.platform import Agent, agent_command
from estimators.backends.hosts.provider import Host


class MountedPlatform(LocalPlatform):
    """Serves all hosts of a job in containers.

    Attributes:
        links: Whether containers see the same paths as this machine.
    """

    links = False
    _relay: Agent | None = None

    def _write(self, host: Host) -> None:
        trees.write_mounted_tree(self.record, self.spec, host.name, self._facts, links=self.links)

    def relay(self, servers: Mapping[int, str]) -> Agent:
        """Pass on what connects to listening sockets, until the job is over.

        Args:
            servers: The sockets' descriptors -> where to: ``host:port``.
        """
        self._end_relay()
        host = self.first
        assert isinstance(host, LocalHost)
        said = bytearray()
        words = [word for fd, to in servers.items() for word in ("--fd", str(fd), "--to", to)]
        command = agent_command(host, ["relay", *words])
        process = host.run(
            command, {}, functools.partial(self.backend.callbacks.output, host.name), pass_fds=tuple(servers)
        )
        agent = self._relay = Agent(process, said, host=None)
        self._agents.append(agent)
        return agent

    def cleanup(self) -> None:
        """End the relay, too."""
        self._end_relay()
        super().cleanup()

    def _end_relay(self) -> None:
        if self._relay is not None:
            relay, self._relay = self._relay, None
            relay.process.close_input()
