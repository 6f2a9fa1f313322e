"""Define the common types of data sources: objects, streams and errors."""

from __future__ import annotations

import abc

from container.contract.errors import AgentError
from container.contract.frozen import dataclass


@dataclass(frozen=True)
class DataObject:
    """One object of a channel: a file or an S3 object.

    Attributes:
        uri: ``s3://bucket/key`` or an absolute path.
        size: Size of the object in bytes.
        identity: A value that changes when the content changes. For an S3 object, the ETag. For a file, a text made of
            the modification time, size and inode. None if unknown.
        key: The object's path below the channel's folder in File mode.
        modified: Time of the last change in seconds since 1970, or None if unknown.
    """

    uri: str
    size: int
    identity: str | None
    key: str = ""
    modified: float | None = None

    @property
    def name(self) -> str:
        """Return the object's URI in quotes, for error messages."""
        return repr(self.uri)


class SourceError(AgentError):
    """Raised if data cannot be read. The message is one line with the object, the offset, the cause and the remedy.

    Attributes:
        uri: The URI of the object, or of the folder or bucket.
        offset: Number of bytes that were read before the error. None if the error is not related to a position.
    """

    def __init__(self, uri: str, cause: str, remedy: str = "", *, offset: int | None = None) -> None:
        at = f" at byte {offset:,}" if offset is not None else ""
        text = f"{uri!r}{at}: {cause.rstrip('.')}."
        super().__init__(f"{text} {remedy}".replace("\n", " ").rstrip())
        self.uri = uri
        self.offset = offset


class ObjectStream(abc.ABC):
    """A stream of the bytes of one object, in order. The stream resumes by itself after transient faults.

    Args:
        item: The object as it was listed.
        offset: The offset of the first byte.

    Attributes:
        position: The offset of the next byte in the object.
    """

    def __init__(self, item: DataObject, offset: int = 0) -> None:
        self._item = item
        self.position = offset

    @abc.abstractmethod
    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Read up to ``len(buffer)`` bytes, and return their number. The number is smaller than ``len(buffer)`` only at
        the end. The number 0 means that no bytes are left.

        Raises:
            SourceError: the object changed, vanished, or cannot be read.
        """

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes. Fewer than ``size`` bytes are returned only at the end.

        Raises:
            SourceError: as for :meth:`readinto`.
        """
        buffer = bytearray(max(min(size, self._item.size - self.position), 0))
        self.readinto(buffer)
        return bytes(buffer)

    @abc.abstractmethod
    def close(self) -> None:
        """Close the stream's connections and stop its threads. Closing a stream twice is not an error."""

    def __enter__(self) -> ObjectStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
