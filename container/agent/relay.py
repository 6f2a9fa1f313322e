"""Relay connections from containers to servers that listen only on this machine's loopback (``agent relay``).

A container cannot reach these servers itself, because it has a separate loopback interface. The caller of this program
passes listening sockets, each with the address of a server. Each connection to a socket is relayed to the socket's
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence

USAGE = "agent relay --fd NUMBER --to HOST:PORT …"
#: Maximum number of simultaneous connections for each server; further connections wait.
_LIMIT = 256
_CHUNK = 1 << 16


def main(argv: Sequence[str]) -> int:
    """Relay connections until standard input ends.

    Returns:
        0 on success. 2 if the command line is invalid.
    """
    try:
        servers = _parse(argv)
    except ValueError as error:
        print(f"{error}; usage: {USAGE}", file=sys.stderr)
        return 2
    asyncio.run(_serve(servers))
    return 0


async def _serve(servers: Sequence[tuple[socket.socket, str, int]]) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(0, over.set)  # standard input has no content: it becomes readable at its end
    listening = [await asyncio.start_server(_to(host, port), sock=sock) for sock, host, port in servers]
    await over.wait()
    for server in listening:
        server.close()


def _to(host: str, port: int):  # type: ignore[no-untyped-def]
    """Return a handler that relays each incoming connection to a server."""
    places = asyncio.Semaphore(_LIMIT)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the server does not exist, or one of the two connections was lost
            async with places:
                try:
                    theirs, ours = await asyncio.open_connection(host, port)
                    try:
                        await asyncio.gather(_pump(reader, ours), _pump(theirs, writer))
                    finally:
                        ours.close()
                finally:
                    writer.close()

    return relay


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _parse(argv: Sequence[str]) -> list[tuple[socket.socket, str, int]]:
    words = list(argv)
    if not words or len(words) % 4:
        raise ValueError("agent relay needs --fd and --to for each server")
    servers = []
    for number in range(0, len(words), 4):
        fd_option, fd, to_option, to = words[number : number + 4]
        host, _, port = to.rpartition(":")
        if (fd_option, to_option) != ("--fd", "--to") or not fd.isdecimal() or not host or not port.isdecimal():
            raise ValueError(f"agent relay cannot read {' '.join(words[number : number + 4])!r}")
        servers.append((socket.socket(fileno=int(fd)), host, int(port)))
    return servers
