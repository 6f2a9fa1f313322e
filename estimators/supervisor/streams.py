"""Assembles the output of a job's hosts into lines, and records when each host last wrote."""

from __future__ import annotations

import time

from container.contract import wire

#: #: The shortest silence that counts, in seconds: toolkits send a heartbeat every five seconds.
LEAST_SILENCE = 15.0


def longest_silence(hang_timeout: float | None, start_timeout: float, *, elastic: bool = False) -> float:
    """Return for how many seconds a host may be silent.

    Args:
        hang_timeout: How long the job may make no progress, in seconds; None without a limit.
        start_timeout: How long hosts may take to come up, in seconds; hosts may be silent that long, too.
        elastic: Whether the others go on without the host: then the host is given up before the job is.
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
        """Clear all state because another attempt begins."""
        self._buffers.clear()
        self._heard.clear()

    def silent(self, seconds: float, *, only_beating: bool) -> list[str]:
        """Return the hosts that have written something before, but nothing for ``seconds`` seconds.

        Args:
            seconds: The length of the silence.
            only_beating: Leave out hosts that have never sent a heartbeat; their image may lack the toolkit.
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
            # # Output without the toolkit's marks comes from another program of the image.
            items.append(item if isinstance(item, wire.Event | wire.Piece) else wire.Piece(host, None, item))
        return items
