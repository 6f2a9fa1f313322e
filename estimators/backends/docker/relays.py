"""Make AWS endpoints on this machine's loopback (``fleetfit serve``, ``fleetfit s3``) reachable for a job's containers.

A container has its own loopback interface. An agent, which is a helper process on this machine, therefore listens at an
address that containers can reach, and forwards connections to the endpoints. The address is this machine's address on
the container engine's default bridge. The containers' environment variables contain this address.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping, Sequence

from container.system.running import ProcessEnd, Runner
from estimators.backends.base import Backend
from estimators.backends.docker.engine import Engine, call
from estimators.backends.hosts.agents import agent_command
from estimators.backends.hosts.here import LocalHost
from estimators.backends.hosts.provider import HostProcess
from estimators.backends.images.errors import EngineError

#: The network that Docker always has, with an address of this machine.
_DEFAULT_BRIDGE = "bridge"


class Relays:
    """A forwarder of this machine's loopback endpoints for a job's containers. The forwarder's agent runs until the job
    has ended.

    Args:
        backend: The job's backend.
        runner: The object that runs the agent.
    """

    def __init__(self, backend: Backend, runner: Runner) -> None:
        self._backend = backend
        self._runner = runner
        self._agent: HostProcess | None = None
        self._end: asyncio.Task[ProcessEnd] | None = None  # the agent's end
        self._there: dict[str, str] = {}  # URL -> the URL for containers

    async def open(self, engine: Engine, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables with URLs that containers can use. Start the agent if it is needed and not
        running.

        Args:
            engine: The client of the container engine.
            environment: The environment variables with URLs for this machine.
        """
        urls = sorted({value for value in environment.values() if _on_loopback(value)})
        if urls and (self._end is None or self._end.done()):
            self._there = {}
            try:
                bridge = await call(self._backend.loop, lambda: engine.gateway(_DEFAULT_BRIDGE))
                self._start(urls, bridge)
            except (EngineError, OSError) as error:  # no default bridge (Podman), or none on this machine (rootless)
                self._backend.warn(
                    f"containers cannot reach {', '.join(urls)}, which is on this machine's loopback: "
                    f"{str(error).rstrip('.')}. boto3 in a script cannot connect there."
                )
        return {name: self._there.get(value, value) for name, value in environment.items()}

    def _start(self, urls: Sequence[str], address: str) -> None:
        host = LocalHost(self._runner, self._backend, self._backend.spec.hosts[0])
        # The folder may not exist yet.
        self._backend.record.host_dir(host.name).mkdir(parents=True, exist_ok=True, mode=0o700)
        words, there = ["relay"], {}
        with contextlib.ExitStack() as opened:  # the agent inherits the sockets
            listeners = [opened.enter_context(socket.create_server((address, 0), backlog=128)) for _ in urls]
            for url, listener in zip(urls, listeners, strict=True):
                server = urllib.parse.urlsplit(url)
                words += ["--fd", str(listener.fileno()), "--to", f"{server.hostname}:{server.port or 80}"]
                there[url] = server._replace(netloc=f"{address}:{listener.getsockname()[1]}").geturl()
            say = functools.partial(self._backend.hand_on, host.name)
            fds = tuple(listener.fileno() for listener in listeners)
            self._agent = host.run(agent_command(host, words), {}, say, pass_fds=fds)
        self._end = self._backend.loop.start(self._agent.wait())
        self._there = there

    def close(self) -> None:
        """Close the agent's standard input, which makes the agent exit."""
        if self._agent is not None:
            self._agent.close_input()


def _on_loopback(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(parts.hostname).is_loopback
    return parts.hostname == "localhost"
