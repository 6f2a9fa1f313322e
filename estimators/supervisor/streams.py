"""What the hosts of a job write: put together to lines, and when each host was last heard of."""

from __future__ import annotations

import time
from collections.abc import Callable

from container.contract import wire

#: Toolkits show every five seconds that they are alive; a shorter silence than this means nothing, in seconds.
LEAST_SILENCE = 15.0


def longest_silence(hang_timeout: float | None, start_timeout: float, *, elastic: bool = False) -> float:
    """For how many seconds a host may give no sign of life.

    Args:
        hang_timeout: For how long nothing may happen in the job; None when it has no limit.
        start_timeout: How long hosts may take to come up, which says how slow they can be.
        elastic: Whether the others go on without it: then it is given up before the job is.
    """
    limit = start_timeout if hang_timeout is None else hang_timeout
    return max(min(limit, start_timeout) if elastic else limit, LEAST_SILENCE)


class HostStreams:
    """The output of every host's toolkit, which arrives in pieces of any size.

    Args:
        take: Gets the host, its events and lines in their order, and when they came, in nanoseconds since the epoch.
    """

    def __init__(self, take: Callable[[str, list[wire.Event | wire.Piece], int], None]) -> None:
        self._take = take
        self._buffers: dict[str, bytearray] = {}
        self._heard: dict[str, float] = {}
        self._beating: set[str] = set()

    def feed(self, host: str, data: bytes, time_ns: int | None = None) -> None:
        """Take some output.

        Args:
            host: Whose.
            data: The bytes.
            time_ns: When it was written, in nanoseconds since the epoch; default: now.
        """
        self._heard[host] = time.monotonic()
        buffer = self._buffers.setdefault(host, bytearray())
        buffer += data
        self._split(host, buffer, time_ns=time_ns)

    def finish(self, host: str | None = None) -> None:
        """A host, or every one, writes no more: a line without an end is one, too."""
        for name, buffer in list(self._buffers.items()):
            if host in (None, name):
                self._split(name, buffer, final=True)

    def forget(self) -> None:
        """Another attempt begins, on other hosts."""
        self._buffers.clear()
        self._heard.clear()

    def silent(self, seconds: float, *, only_beating: bool) -> list[str]:
        """Hosts that have said something once, and nothing for so many seconds.

        Args:
            seconds: For how long.
            only_beating: Leave out those that have never shown a sign of life on purpose: any image may run there.
        """
        since = time.monotonic() - seconds
        return [
            host for host, heard in self._heard.items() if heard < since and (host in self._beating or not only_beating)
        ]

    def _split(self, host: str, buffer: bytearray, *, time_ns: int | None = None, final: bool = False) -> None:
        items: list[wire.Event | wire.Piece] = []
        for line in wire.split_pieces(buffer, final=final, limit=wire.LINE_LIMIT):
            if line == wire.HEARTBEAT:
                self._beating.add(host)
                continue
            item = wire.decode_line(line)
            # Who writes without the toolkit's marks is any program of the image.
            items.append(item if isinstance(item, wire.Event | wire.Piece) else wire.Piece(host, None, item))
        self._take(host, items, time.time_ns() if time_ns is None else time_ns)
