"""AWS's endpoints that are on this machine's loopback (`fleetfit serve`, `fleetfit s3`), for a job's containers.

A container's own loopback is another one. So an agent on this machine listens where containers reach it, at the address
that the engine's default bridge has here, and passes on what comes; the containers' variables name that address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping

from estimators.backends.docker.engine import Engine
from estimators.backends.docker.engine_errors import EngineError
from estimators.backends.docker.mounted import MountedPlatform
from estimators.backends.hosts.platform import Agent

#: The network that Docker has from its start, with an address of this machine.
_DEFAULT_BRIDGE = "bridge"
_BACKLOG = 128


class Relays:
    """What a job's containers need of this machine's loopback.

    Args:
        platform: What serves the job's hosts, of whose agents one relays.
    """

    def __init__(self, platform: MountedPlatform) -> None:
        self._platform = platform
        self._address: str | None = None
        self._there: dict[str, str] = {}  # URL -> the same for containers

    @staticmethod
    def wanted(environment: Mapping[str, str]) -> bool:
        """Whether a variable names a server on loopback."""
        return any(_on_loopback(value) for value in environment.values())

    def look(self, engine: Engine) -> None:
        """In a thread: ask the engine for this machine's address."""
        with contextlib.suppress(EngineError):  # Podman has no such network, and is told of below
            self._address = self._address or engine.gateway(_DEFAULT_BRIDGE)

    def settings(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables as containers can use them; starts what that needs, unless it runs already."""
        urls = {value for value in environment.values() if _on_loopback(value)}
        if urls - self._there.keys():
            self._start(sorted(urls))
        return {name: self._there.get(value, value) for name, value in environment.items()}

    async def _forget(self, relay: Agent) -> None:
        """Start another relay, when one is needed after this one has ended."""
        await relay.end()
        self._there.clear()

    def _start(self, urls: list[str]) -> None:
        sockets: dict[str, socket.socket] = {}
        try:
            for url in urls:
                server = urllib.parse.urlsplit(url).netloc
                if server not in sockets:
                    if self._address is None:
                        raise OSError("the engine has no default bridge")
                    sockets[server] = socket.create_server((self._address, 0), backlog=_BACKLOG)
            targets = {sock.fileno(): _target(server) for server, sock in sockets.items()}
            self._platform.backend.loop.start(self._forget(self._platform.relay(targets)))
            for url in urls:
                parts = urllib.parse.urlsplit(url)
                host, port = sockets[parts.netloc].getsockname()[:2]
                self._there[url] = parts._replace(netloc=f"{host}:{port}").geturl()
        except OSError as error:  # an engine whose networks are not this machine's (rootless), or without that bridge
            self._platform.warn(
                f"containers cannot reach {', '.join(urls)}, which is on this machine's loopback: "
                f"{error.strerror or error}. boto3 in a script cannot connect there."
            )
        finally:
            for sock in sockets.values():
                sock.close()  # the agent has it


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
