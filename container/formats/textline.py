r"""Lines of text, each ended by ``\n``; the last one may lack it. Empty lines are records; ``\r`` is part of a line."""

from __future__ import annotations

from container.formats.base import Buffer

END = b"\n"


class TextLineFraming:
    """See :class:`container.formats.base.Framing`."""

    def hop(self, data: Buffer, start: int, end: int, ends: list[int] | None = None) -> tuple[int, int]:
        """See :class:`container.formats.base.Framing`."""
        last = data.rfind(END, start, end) + 1
        if last <= start:
            return start, 0
        if ends is None:
            return last, data[start:last].count(END)
        before = len(ends)
        position = start
        find = data.find
        while position < last:
            position = find(END, position, last) + 1
            ends.append(position)
        return last, len(ends) - before

    def needed(self, data: Buffer, start: int, end: int) -> int:
        """See :class:`container.formats.base.Framing`."""
        return end - start + 1

    def last(self, data: Buffer, start: int, end: int) -> int:
        """See :class:`container.formats.base.Framing`. The last line needs no end."""
        return end

    def payload(self, data: Buffer, start: int, end: int) -> bytes:
        """See :class:`container.formats.base.Framing`."""
        return data[start : end - 1] if data[end - 1 : end] == END else data[start:end]
