"""Split the output of a job's hosts into events and lines, and record when each host last wrote output."""

from __future__ import annotations

import time

from container.contract import wire

#: The least number of seconds without output after which a host counts as silent. Toolkits send a heartbeat every five
#: seconds.
LEAST_SILENCE = 15.0


def longest_silence(hang_timeout: float | None, start_timeout: float, *, elastic: bool = False) -> float:
    """Return for how many seconds a host may be silent before the supervisor reacts.

    Args:
        hang_timeout: How long the job may make no progress, in seconds. None for no limit.
        start_timeout: How long hosts may take to start, in seconds. Starting hosts may be silent.
        elastic: Whether the job is elastic, so that the other hosts continue without a silent host. The silent host is
            then terminated early, before the time limit fails the whole job.
    """
    limit = start_timeout if hang_timeout is None else hang_timeout
    return max(min(limit, start_timeout) if elastic else limit, LEAST_SILENCE)


class HostStreams:
    """The output streams of the hosts' toolkits, in chunks of any size. A toolkit starts the ranks on its host."""

    def __init__(self) -> None:
        self._buffers: dict[str, bytearray] = {}
        self._heard: dict[str, float] = {}
        self._beating: set[str] = set()

    def feed(self, host: str, data: bytes) -> list[wire.Event | wire.Piece]:
        """Add output of a host. Return the events and lines that are now complete, in their order."""
        self._heard[host] = time.monotonic()
        buffer = self._buffers.setdefault(host, bytearray())
        buffer += data
        return self._split(host, buffer)

    def finish(self, host: str | None = None) -> list[wire.Event | wire.Piece]:
        """Return the events and lines that remain at the end of a host's output. A last line without a line end counts
        as complete.

        Args:
            host: The host. None for all hosts.
        """
        ended = [(name, buffer) for name, buffer in self._buffers.items() if host in (None, name)]
        return [item for name, buffer in ended for item in self._split(name, buffer, final=True)]

    def forget(self) -> None:
        """Clear the buffers and times. Call the function before another attempt begins."""
        self._buffers.clear()
        self._heard.clear()

    def silent(self, seconds: float, *, only_beating: bool) -> list[str]:
        """Return the hosts that have written output before, but no output in the last ``seconds`` seconds.

        Args:
            seconds: The length of the silence.
            only_beating: Whether to omit hosts that have never sent a heartbeat. The image of such hosts may lack the
                toolkit.
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
            # A line without the toolkit's prefix comes from another program in the image.
            items.append(item if isinstance(item, wire.Event | wire.Piece) else wire.Piece(host, None, item))
        return items
