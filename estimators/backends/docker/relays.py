"""Make AWS endpoints on this machine's loopback (``fleetfit serve``, ``fleetfit s3``) reachable for a job's containers.

A container has its own loopback interface. The supervisor therefore listens at an address that containers can reach,
and relays connections to the endpoints. The address is this machine's address on the container engine's default bridge.
The containers' environment variables contain this address.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping

from container.system.connection import BACKLOG
from estimators.backends.base import Backend
from estimators.backends.docker.engine import Engine, call
from estimators.backends.images.errors import EngineError

#: The network that Docker always has, with an address of this machine.
_DEFAULT_BRIDGE = "bridge"
_PORTS = {"http": 80, "https": 443}
#: Maximum number of connections of containers that are relayed at the same time. Further connections wait in the
#: kernel, where they use no descriptors of the supervisor.
_LIMIT = 128
#: Seconds until the next attempt to accept a connection when the supervisor has no descriptors left.
_PAUSE_S = 1.0
_CHUNK = 1 << 16


class Relays:
    """Relays through which a job's containers reach endpoints on this machine's loopback, until the job has ended.

    Args:
        backend: The job's backend.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._accepting: list[asyncio.Task[None]] = []
        self._there: dict[str, str] = {}  # URL -> the URL for containers
        self._places = asyncio.Semaphore(_LIMIT)

    async def open(self, engine: Engine, environment: Mapping[str, str]) -> dict[str, str]:
        """Start relays for the URLs of this machine's loopback. Return the variables with URLs that containers can use.

        A URL for which no relay can be started is not changed, and the user gets a warning.

        Args:
            engine: The client of the container engine.
            environment: The environment variables with URLs for this machine.
        """
        urls = sorted({value for value in environment.values() if _on_loopback(value)} - self._there.keys())
        if urls:
            try:
                bridge = await call(self._backend.loop, lambda: engine.gateway(_DEFAULT_BRIDGE))
                for url in urls:
                    self._there[url] = self._relay(url, bridge)
            except (EngineError, OSError) as error:  # no default bridge (Podman), or none on this machine (rootless)
                self._backend.warn(
                    f"containers cannot reach {', '.join(urls)}, which is on this machine's loopback: "
                    f"{str(error).rstrip('.')}. boto3 in a script cannot connect there."
                )
        return {name: self._there.get(value, value) for name, value in environment.items()}

    def _relay(self, url: str, address: str) -> str:
        """Relay connections to the server of a URL, and return the URL that leads to the relay.

        Args:
            url: The URL of a server on this machine's loopback.
            address: The address at which the relay listens.

        Raises:
            OSError: the relay cannot listen at the address.
        """
        server = urllib.parse.urlsplit(url)
        listener = socket.create_server((address, 0), backlog=BACKLOG)
        listener.setblocking(False)
        accepting = self._accept(listener, server.hostname or "", server.port or _PORTS[server.scheme])
        self._accepting.append(self._backend.loop.start(accepting))
        return server._replace(netloc=f"{address}:{listener.getsockname()[1]}").geturl()

    async def _accept(self, listener: socket.socket, host: str, port: int) -> None:
        """Accept connections of containers, and relay each to a server. At most ``_LIMIT`` connections are open at a
        time.
        """
        loop = self._backend.loop
        with listener:
            while True:
                await self._places.acquire()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:  # there are no descriptors left
                    self._places.release()
                    await asyncio.sleep(_PAUSE_S)
                else:
                    loop.start(self._connect(connection, host, port))

    async def _connect(self, connection: socket.socket, host: str, port: int) -> None:
        """Relay a container's connection to a server in both directions, until both sides have ended the connection."""
        try:
            with contextlib.suppress(OSError):  # one side was lost
                reader, writer = await asyncio.open_connection(sock=connection, limit=_CHUNK)
                with contextlib.closing(writer):
                    theirs, ours = await asyncio.open_connection(host, port, limit=_CHUNK)
                    with contextlib.closing(ours):
                        await asyncio.gather(_pump(reader, ours), _pump(theirs, writer))
        finally:
            self._places.release()

    def close(self) -> None:
        """Stop accepting connections."""
        for accepting in self._accepting:
            accepting.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _on_loopback(url: str) -> bool:
    with contextlib.suppress(ValueError):  # not a URL, or the host is a name
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in _PORTS and parts.hostname and (parts.port or _PORTS[parts.scheme]):
            return parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname).is_loopback
    return False
