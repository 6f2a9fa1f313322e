"""AWS's endpoints that are on this machine's loopback (`fleetfit serve`, `fleetfit s3`), for a job's containers.

A container's own loopback is another one. So an agent on this machine listens where containers reach it, at the address
that the engine's default bridge has here, and passes on what comes; the containers' variables name that address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping, Sequence

from container.contract.wire import Event
from container.system.background import Background
from container.system.running import Runner
from estimators.backends.base import Backend
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.engine_errors import EngineError
from estimators.backends.hosts.here import LocalHost
from estimators.backends.hosts.platform import agent_command
from estimators.backends.hosts.provider import HostProcess

#: The network that Docker has from its start, with an address of this machine.
_DEFAULT_BRIDGE = "bridge"
_BACKLOG = 128


class Relays:
    """What a job's containers need of this machine's loopback; the agent that relays is there until the job is over.

    Args:
        backend: The job's backend.
        runner: Runs the agent.
    """

    def __init__(self, backend: Backend, runner: Runner) -> None:
        self._backend = backend
        self._runner = runner
        self._agent: HostProcess | None = None
        self._there: dict[str, str] = {}  # URL -> the same for containers

    async def open(self, engine: Engine, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables as containers can use them; start what that needs, unless it runs already."""
        urls = sorted({value for value in environment.values() if _on_loopback(value)})
        if urls and self._agent is None:
            try:
                bridge = await Background.of(self._backend.loop).call(lambda: engine.gateway(_DEFAULT_BRIDGE))
                self._start(urls, bridge)
            except EngineError:  # Podman has no such network
                self._warn(urls, "the engine has no default bridge")
            except OSError as error:  # an engine whose networks are not this machine's (rootless)
                self._warn(urls, error.strerror or str(error))
        return {name: self._there.get(value, value) for name, value in environment.items()}

    def _start(self, urls: Sequence[str], address: str) -> None:
        with contextlib.ExitStack() as opened:  # the agent has the sockets
            sockets: dict[str, socket.socket] = {}
            for server in dict.fromkeys(urllib.parse.urlsplit(url).netloc for url in urls):
                sockets[server] = opened.enter_context(socket.create_server((address, 0), backlog=_BACKLOG))
            host = LocalHost(self._runner, self._backend, self._backend.spec.hosts[0])
            folder = self._backend.record.host_dir(host.name)  # nothing may have been written there yet
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fds = {sock.fileno(): _target(server) for server, sock in sockets.items()}
            words = [word for fd, to in fds.items() for word in ("--fd", str(fd), "--to", to)]
            self._agent = host.run(
                agent_command(host, ["relay", *words]),
                {},
                lambda data: self._backend.callbacks.output(host.name, data),
                pass_fds=tuple(fds),
            )
            self._backend.loop.start(self._forget(self._agent))
            for url in urls:
                parts = urllib.parse.urlsplit(url)
                name, port = sockets[parts.netloc].getsockname()[:2]
                self._there[url] = parts._replace(netloc=f"{name}:{port}").geturl()

    async def _forget(self, agent: HostProcess) -> None:
        """Start another agent, when one is needed after this one has ended."""
        await agent.wait()
        self._agent = None
        self._there.clear()

    def _warn(self, urls: Sequence[str], why: str) -> None:
        text = (
            f"containers cannot reach {', '.join(urls)}, which is on this machine's loopback: {why}. boto3 in a script "
            "cannot connect there."
        )
        host = self._backend.spec.hosts[0]
        self._backend.callbacks.output(host, Event(kind="warning", host=host, data={"message": text}).to_line())

    def close(self) -> None:
        """End the agent."""
        if self._agent is not None:
            self._agent.close_input()


def _on_loopback(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    try:
        return parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        return False


def _target(netloc: str) -> str:
    parts = urllib.parse.urlsplit(f"//{netloc}")
    return f"{parts.hostname}:{parts.port or 80}"
