"""Encode and decode a checkpoint's manifest. The manifest describes the checkpoint's contents, and lists the size and
checksum of each file.

The manifest contains a checksum of its own content. The functions are pure: they convert between bytes and values.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import zlib
from collections.abc import Mapping
from typing import Any

from container.checkpoint.errors import CheckpointVersionError
from container.contract.frozen import dataclass

FILE_NAME = "manifest.json"
FORMAT = "fleetfit-checkpoint"
#: Increased when older readers can no longer read the format. The rule for ``checksum`` never changes.
VERSION = 1


class CheckpointManifestError(ValueError):
    """Raised if a manifest is damaged or incomplete."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a training.

    Attributes:
        epoch: Number of finished epochs, which is also the number of the next epoch.
        step: Number of finished steps (batches) since the beginning, over all epochs.
        batch: Number of finished batches of the current epoch. 0 between two epochs.
        position: Position of the data source, as the data source reports it. Any JSON value is possible.
    """

    epoch: int = 0
    step: int = 0
    batch: int = 0
    position: Any = None

    def __post_init__(self) -> None:
        for name in ("epoch", "step", "batch"):
            value = getattr(self, name)
            try:
                number = operator.index(value)
            except TypeError:
                number = -1
            if number < 0 or isinstance(value, bool):
                raise ValueError(f"{name} must be a whole number that is not negative, got {value!r}.")
            object.__setattr__(self, name, number)  # JSON has no numbers of numpy, for example


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint.

    Attributes:
        name: Name of the file in the checkpoint's folder.
        bytes: Size of the file in bytes.
        crc32: CRC-32 checksum of the content, as 8 hexadecimal digits.
    """

    name: str
    bytes: int
    crc32: str

    def __post_init__(self) -> None:
        if "/" in self.name or self.name in ("", ".", "..", FILE_NAME):
            raise ValueError(f"{self.name!r} cannot be the name of a checkpoint's file.")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a checkpoint, which describes the checkpoint's contents.

    Attributes:
        serial: The checkpoint's number in the folder. Checkpoints with higher numbers were saved later.
        saved_ns: Time of the save, in nanoseconds since 1970-01-01 UTC.
        progress: The training's progress at the save.
        files: The files of the checkpoint.
        metrics: Values of metrics at the save, by name. They include the metric that determines the best checkpoints,
            if the save was given a value for it.
        metadata: The metadata that the user passed to the save.
        facts: Facts about the training that saved the checkpoint, such as the framework and the number of ranks.
    """

    serial: int
    saved_ns: int
    progress: Progress
    files: tuple[FileEntry, ...]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metadata: Any = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the content of the manifest's file.

        Raises:
            TypeError: ``metadata`` or the progress's ``position`` contains a value that JSON cannot represent.
        """
        # Encode and decode the values first: the checksum must match the values that a reader gets, in which keys are
        # strings, and tuples have become lists.
        values = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}))
        values["checksum"] = _checksum(values)
        return json.dumps(values, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Parse the content of a manifest's file.

        Raises:
            CheckpointManifestError: the content is damaged, or is not a manifest.
            CheckpointVersionError: the content is undamaged, but this version of fleetfit cannot read its format.
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
        """Return the total size of all files except the manifest, in bytes."""
        return sum(entry.bytes for entry in self.files)


def _checksum(values: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in values.items() if key != "checksum"}
    content = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    return f"crc32:{zlib.crc32(content):08x}"
