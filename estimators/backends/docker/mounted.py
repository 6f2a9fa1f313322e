"""Hosts whose trees are on this machine, and which containers have as ``/opt/ml``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from container.system.running import ProcessEnd
from estimators.backends import trees
from estimators.backends.hosts.here import LocalHost, LocalPlatform
from estimators.backends.hosts.platform import agent_command
from estimators.backends.hosts.provider import Host, HostProcess


class MountedPlatform(LocalPlatform):
    """Serves all hosts of a job in containers.

    Attributes:
        links: Whether containers see the same paths as this machine.
    """

    links = False
    _relay: HostProcess | None = None

    def _write(self, host: Host) -> None:
        trees.write_mounted_tree(self.record, self.spec, host.name, self._facts, links=self.links)

    def relay(self, servers: Mapping[int, str], ended: Callable[[], None]) -> None:
        """Pass on what connects to listening sockets, until the job is over.

        Args:
            servers: The sockets' descriptors -> where to: ``host:port``.
            ended: Called when it has ended.
        """
        self._end_relay()
        host = self.first
        assert isinstance(host, LocalHost)

        def over(end: ProcessEnd) -> None:
            self._agents.remove(process)
            ended()

        words = [word for fd, to in servers.items() for word in ("--fd", str(fd), "--to", to)]
        command = agent_command(host, ["relay", *words])
        process = self._relay = host.run(
            command, {}, lambda data: self.backend.callbacks.output(host.name, data), over, pass_fds=tuple(servers)
        )
        self._agents.append(process)

    def cleanup(self) -> None:
        """End the relay, too."""
        self._end_relay()
        super().cleanup()

    def _end_relay(self) -> None:
        if self._relay is not None:
            process, self._relay = self._relay, None
            process.close_input()
