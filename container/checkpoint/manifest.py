"""A checkpoint's manifest: what it holds, and the size and checksum of each of its files.

The manifest carries a checksum of itself. Pure: bytes in, values out.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from typing import Any

from container.checkpoint.errors import CheckpointVersionError

FILE_NAME = "manifest.json"
FORMAT = "fleetfit-checkpoint"
#: Raised when an older reader could no longer make sense of what is written. The rule for ``checksum`` never changes.
VERSION = 1


class CheckpointManifestError(ValueError):
    """The manifest is damaged or incomplete."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training had come.

    Attributes:
        epoch: Finished epochs, which is the number of the epoch to go on with.
        step: Finished steps (batches) since the beginning, over all epochs.
        batch: Finished batches of the epoch that was under way; 0 between two epochs.
        position: Where the data source was, as it said itself; anything that JSON can hold.
    """

    epoch: int = 0
    step: int = 0
    batch: int = 0
    position: Any = None

    def __post_init__(self) -> None:
        for name in ("epoch", "step", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{name} must be a whole number that is not negative, got {value!r}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint.

    Attributes:
        name: Its name in the checkpoint's folder.
        bytes: Its size.
        crc32: Checksum of its content, 8 hexadecimal digits.
    """

    name: str
    bytes: int
    crc32: str

    def __post_init__(self) -> None:
        if "/" in self.name or self.name in ("", ".", "..", FILE_NAME):
            raise ValueError(f"{self.name!r} cannot be the name of a checkpoint's file.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint holds.

    Attributes:
        serial: Its number in the folder; a later one was saved later.
        saved_ns: When, in nanoseconds since the epoch.
        progress: How far the training was.
        files: Its files.
        metrics: Values at that point, by name; what "best" is chosen by.
        metadata: The user's own.
        facts: What wrote it: framework, number of ranks …
    """

    serial: int
    saved_ns: int
    progress: Progress
    files: tuple[FileEntry, ...]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metadata: Any = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the file's content.

        Raises:
            TypeError: metadata or position hold something that JSON does not know.
        """
        # Through JSON and back: the checksum is of what a reader will see (keys that are text, lists for tuples).
        values = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}))
        values["checksum"] = _checksum(values)
        return json.dumps(values, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Read the file's content.

        Raises:
            ManifestError: it is damaged, or something else.
            CheckpointVersionError: it is sound, but of a later version.
        """
        try:
            values = json.loads(content)
        except ValueError:
            raise CheckpointManifestError("it is not complete JSON") from None
        if not isinstance(values, dict) or values.get("checksum") != _checksum(values):
            raise CheckpointManifestError("its content does not match its checksum")
        if values.get("format") != FORMAT:
            raise CheckpointManifestError(f"its format is {values.get('format')!r}, not {FORMAT!r}")
        if values.get("version") != VERSION:
            raise CheckpointVersionError(
                f"the checkpoint has format version {values.get('version')!r}, but this version of fleetfit reads "
                f"version {VERSION}. Use the version of fleetfit that wrote the checkpoint, or a newer one."
            )
        try:
            return cls(
                serial=values["serial"],
                saved_ns=values["saved_ns"],
                progress=Progress(**values["progress"]),
                files=tuple(FileEntry(**entry) for entry in values["files"]),
                metrics=values["metrics"],
                metadata=values["metadata"],
                facts=values["facts"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointManifestError(f"an entry is missing or not valid: {error}") from error

    @property
    def total_bytes(self) -> int:
        """The size of all files but the manifest."""
        return sum(entry.bytes for entry in self.files)


def _checksum(values: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in values.items() if key != "checksum"}
    content = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    return f"crc32:{zlib.crc32(content):08x}"
