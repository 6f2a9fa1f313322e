"""The common types of data sources: objects, streams and errors."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from container.contract.errors import AgentError


@dataclasses.dataclass(frozen=True)
class DataObject:
    """One object of a channel: a file or an S3 object.

    Attributes:
        uri: ``s3://bucket/key`` or an absolute path.
        size: Its bytes.
        identity: Changes when the content does: the ETag, or time, size and inode of a file. None if unknown.
        key: Its path below the channel's folder, as File mode has it.
        modified: When it was written, in seconds since 1970, where that is known.
    """

    uri: str
    size: int
    identity: str | None
    key: str = ""
    modified: float | None = None

    @property
    def name(self) -> str:
        """What errors call it."""
        return repr(self.uri)


class SourceError(AgentError):
    """Data cannot be read; one line that names object, offset, cause and remedy.

    Attributes:
        uri: The object or the place.
        offset: How many bytes of it were read; None where that means nothing.
    """

    def __init__(self, uri: str, cause: str, remedy: str = "", *, offset: int | None = None) -> None:
        at = f" at byte {offset:,}" if offset is not None else ""
        text = f"{uri!r}{at}: {cause.rstrip('.')}."
        super().__init__(f"{text} {remedy}".replace("\n", " ").rstrip())
        self.uri = uri
        self.offset = offset


class ObjectStream(Protocol):
    """The bytes of one object, in order; it resumes by itself after transient faults."""

    @property
    def position(self) -> int:
        """The offset in the object of the next byte."""

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Read up to ``len(buffer)`` bytes; fewer come only at the end, and 0 is the end.

        Raises:
            SourceError: the object changed, vanished, or cannot be read.
        """

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; fewer come only at the end.

        Raises:
            SourceError: as for :meth:`readinto`.
        """

    def close(self) -> None:
        """Let go of connections and threads; may be called again."""

    def __enter__(self) -> ObjectStream: ...

    def __exit__(self, *exc: object) -> None: ...
