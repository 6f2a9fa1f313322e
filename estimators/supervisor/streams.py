"""What the hosts of a job write: put together to lines, and when each host was last heard of."""

from __future__ import annotations

import time

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
    """The output of every host's toolkit, which arrives in pieces of any size."""

    def __init__(self) -> None:
        self._buffers: dict[str, bytearray] = {}
        self._heard: dict[str, float] = {}
        self._beating: set[str] = set()

    def feed(self, host: str, data: bytes) -> list[wire.Event | wire.Piece]:
        """Take some output of a host, and return the events and lines that are whole, in their order."""
        self._heard[host] = time.monotonic()
        buffer = self._buffers.setdefault(host, bytearray())
        buffer += data
        return self._split(host, buffer)

    def finish(self, host: str | None = None) -> list[wire.Event | wire.Piece]:
        """Return the rest of a host, or of every one, which writes no more: a line without an end is one, too."""
        ended = [(name, buffer) for name, buffer in self._buffers.items() if host in (None, name)]
        return [item for name, buffer in ended for item in self._split(name, buffer, final=True)]

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

    def _split(self, host: str, buffer: bytearray, *, final: bool = False) -> list[wire.Event | wire.Piece]:
        items: list[wire.Event | wire.Piece] = []
        for line in wire.split_pieces(buffer, final=final, limit=wire.LINE_LIMIT):
            if line == wire.HEARTBEAT:
                self._beating.add(host)
                continue
            item = wire.decode_line(line)
            # Who writes without the toolkit's marks is any program of the image.
            items.append(item if isinstance(item, wire.Event | wire.Piece) else wire.Piece(host, None, item))
        return items
