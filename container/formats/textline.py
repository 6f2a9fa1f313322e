r"""Find the ends of lines of text. Each line is terminated by ``\n``, which the last line may lack.

Empty lines are records. A ``\r`` is a part of its line.
"""

from __future__ import annotations

from container.formats.base import Buffer

END = b"\n"


class TextLineFraming:
    """The framing of lines of text. See :class:`container.formats.base.Framing`."""

    def hop(self, data: Buffer, start: int, end: int, ends: list[int] | None = None) -> tuple[int, int]:
        """Find the ends of complete lines (see :class:`container.formats.base.Framing`)."""
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
        """Return the minimum size of an incomplete line (see :class:`container.formats.base.Framing`)."""
        return end - start + 1

    def last(self, data: Buffer, start: int, end: int) -> int:
        """Return ``end``, because the last line may lack a terminator (see :class:`container.formats.base.Framing`)."""
        return end

    def payload(self, data: Buffer, start: int, end: int) -> bytes:
        """Return one complete line without its terminator."""
        return data[start : end - 1] if data[end - 1 : end] == END else data[start:end]
