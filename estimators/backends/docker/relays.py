"""AWS's endpoints that are on this machine's loopback (`fleetfit serve`, `fleetfit s3`), for a job's containers.

A container's own loopback is another one. So an agent on this machine listens where containers reach it, at the address
that the engine's default bridge has here, and passes on what comes; the containers' variables name that address.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping, Sequence

from container.system.background import Background
from container.system.running import Runner
from estimators.backends.base import Backend
from estimators.backends.docker.engine import Engine
from estimators.backends.hosts.here import LocalHost
from estimators.backends.hosts.platform import agent_command
from estimators.backends.hosts.provider import HostProcess
from estimators.backends.images.errors import EngineError

#: The network that Docker has from its start, with an address of this machine.
_DEFAULT_BRIDGE = "bridge"


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
            except (EngineError, OSError) as error:  # Podman has no such network; a rootless engine's is not here
                self._backend.warn(
                    f"containers cannot reach {', '.join(urls)}, which is on this machine's loopback: "
                    f"{str(error).rstrip('.')}. boto3 in a script cannot connect there."
                )
        return {name: self._there.get(value, value) for name, value in environment.items()}

    def _start(self, urls: Sequence[str], address: str) -> None:
        host = LocalHost(self._runner, self._backend, self._backend.spec.hosts[0])
        # Nothing may have been written there yet.
        self._backend.record.host_dir(host.name).mkdir(parents=True, exist_ok=True, mode=0o700)
        words, there = ["relay"], {}
        with contextlib.ExitStack() as opened:  # the agent has the sockets
            listeners = [opened.enter_context(socket.create_server((address, 0), backlog=128)) for _ in urls]
            for url, listener in zip(urls, listeners, strict=True):
                server = urllib.parse.urlsplit(url)
                words += ["--fd", str(listener.fileno()), "--to", f"{server.hostname}:{server.port or 80}"]
                there[url] = server._replace(netloc=f"{address}:{listener.getsockname()[1]}").geturl()
            say = functools.partial(self._backend.hand_on, host.name)
            fds = tuple(listener.fileno() for listener in listeners)
            self._agent = host.run(agent_command(host, words), {}, say, pass_fds=fds)
        self._there = there

    def close(self) -> None:
        """End the agent."""
        if self._agent is not None:
            self._agent.close_input()


def _on_loopback(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(parts.hostname).is_loopback
    return parts.hostname == "localhost"
