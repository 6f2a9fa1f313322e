"""A job's input channels as values: what a backend tells the host agent about each."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from container.contract.names import unknown

_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_")  # SageMaker's ChannelName
_MAX_ATTRIBUTES = 16  # SageMaker's limit of AttributeNames


class ChannelError(ValueError):
    """An invalid channel; the message names it, the value, and what is allowed."""


class InputMode(enum.Enum):
    """How a script reads a channel."""

    FILE = "File"
    PIPE = "Pipe"
    FAST_FILE = "FastFile"


class Channel(str):
    """A channel as an argument of a function: the path that ``SM_CHANNEL_<NAME>`` has.

    A Channel is a ``str``: ``open()``, ``os.path`` and ``Path()`` accept it. In Pipe mode, the names of the FIFOs begin
    with this path; :class:`container.pipe_dataset.PipeModeDataset` needs the channel's :attr:`name`.

    Args:
        path: The path.
        name: The channel's name.
    """

    name: str

    def __new__(cls, path: str, name: str) -> Channel:
        made = super().__new__(cls, path)
        made.name = name
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.name


class DataType(enum.Enum):
    """How a channel's URI is to be read (SageMaker's S3DataType)."""

    PREFIX = "S3Prefix"
    MANIFEST = "ManifestFile"
    AUGMENTED_MANIFEST = "AugmentedManifestFile"


class DataDistribution(enum.Enum):
    """How a channel is distributed over the hosts (SageMaker's S3DataDistributionType)."""

    REPLICATED = "FullyReplicated"
    SHARDED = "ShardedByS3Key"


class Compression(enum.Enum):
    """How the objects are packed."""

    NONE = "None"
    GZIP = "Gzip"


class RecordWrapping(enum.Enum):
    """What is put around each object in the stream."""

    NONE = "None"
    RECORDIO = "RecordIO"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostChannel:
    """One channel.

    Attributes:
        name: Its name, as in ``SM_CHANNEL_<NAME>``.
        uri: ``s3://bucket/prefix``, a ``file://`` URL or an absolute path: a folder or file, or a manifest.
        mode: How the script reads it.
        data_type: What ``uri`` names.
        distribution: What each host gets of it.
        compression: Pipe mode only.
        record_wrapping: Pipe mode only.
        shuffle_seed: Seed of the order of objects and manifest entries; None keeps the order. Files of File mode have
            no order: there it decides which objects a host is dealt.
        attribute_names: What to read of an augmented manifest's lines, in this order.
        content_type: MIME type, for the script.

    Raises:
        ChannelError: a value is none of the allowed ones, or two of them exclude each other.
    """

    name: str
    uri: str
    mode: InputMode = InputMode.FILE
    data_type: DataType = DataType.PREFIX
    distribution: DataDistribution = DataDistribution.REPLICATED
    compression: Compression = Compression.NONE
    record_wrapping: RecordWrapping = RecordWrapping.NONE
    shuffle_seed: int | None = None
    attribute_names: tuple[str, ...] = ()
    content_type: str | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 64 or not _NAME.issuperset(self.name) or self.name in (".", ".."):
            raise ChannelError(
                f"channel {self.name!r}: a name has 1 to 64 letters, digits, dots, hyphens and underscores."
            )
        problem = self._problem()
        if problem is not None:
            raise ChannelError(f"channel {self.name!r}: {problem}")

    def _problem(self) -> str | None:
        """Return which settings exclude each other; the rules are SageMaker's."""
        augmented = self.data_type is DataType.AUGMENTED_MANIFEST
        if self.mode is not InputMode.PIPE:
            if self.compression is not Compression.NONE:
                return (
                    f"compression {self.compression.value!r} is for Pipe mode, but this channel is in "
                    f"{self.mode.value} mode. Set input_mode='Pipe', or leave compression out: the script then gets "
                    "the objects as they are."
                )
            if self.record_wrapping is not RecordWrapping.NONE:
                return (
                    f"record_wrapping {self.record_wrapping.value!r} is for Pipe mode, but this channel is in "
                    f"{self.mode.value} mode. Leave record_wrapping out, or set input_mode='Pipe'."
                )
            if augmented:
                return (
                    f"s3_data_type {self.data_type.value!r} can only be read in Pipe mode, but this channel is in "
                    f"{self.mode.value} mode. Set input_mode='Pipe'."
                )
        if augmented and not self.attribute_names:
            return (
                f"s3_data_type {self.data_type.value!r} needs attribute_names: the attributes to read from each line, "
                "such as ['source-ref', 'label']."
            )
        if augmented and self.distribution is DataDistribution.SHARDED:
            return (
                f"distribution {self.distribution.value!r} divides objects among hosts, but an augmented manifest is "
                "read line by line. Use 'FullyReplicated', and shard in the script."
            )
        if self.attribute_names and not augmented:
            return (
                f"attribute_names are for an augmented manifest, but s3_data_type is {self.data_type.value!r}. Leave "
                "attribute_names out, or set s3_data_type='AugmentedManifestFile'."
            )
        if len(self.attribute_names) > _MAX_ATTRIBUTES:
            return f"{len(self.attribute_names)} attribute_names are given; at most {_MAX_ATTRIBUTES} can be read."
        return None

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> HostChannel:
        """Read what :meth:`to_dict` gave.

        Raises:
            ChannelError: an unknown key, a value of the wrong kind, or as for the class.
        """
        if not isinstance(values, Mapping) or not isinstance(values.get("uri"), str):
            raise ChannelError(f"channel {name!r} needs a 'uri'; got {values!r}.")
        for key in values:
            if key not in _KEYS:
                raise ChannelError(f"channel {name!r}: {unknown('key', key, _KEYS)}")
        read: dict[str, Any] = {}
        for key, value in values.items():
            if key in _ENUMS:
                read[key] = _member(name, key, value)
            elif key == "shuffle_seed":
                if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                    raise ChannelError(f"channel {name!r}: shuffle_seed must be a whole number, got {value!r}.")
                read[key] = value
            elif key == "attribute_names":
                if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
                    raise ChannelError(f"channel {name!r}: attribute_names must be a list of strings, got {value!r}.")
                read[key] = tuple(value)
            elif key == "content_type" and value is not None and not isinstance(value, str):
                raise ChannelError(f"channel {name!r}: content_type must be a string, got {value!r}.")
            else:
                read[key] = value
        return cls(name=name, **read)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form without the name and without values at their default."""
        values: dict[str, Any] = {"uri": self.uri, "mode": self.mode.value}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("name", "uri", "mode") or value == field.default:
                continue
            if isinstance(value, enum.Enum):
                value = value.value
            values[field.name] = list(value) if isinstance(value, tuple) else value
        return values


_KEYS = tuple(field.name for field in dataclasses.fields(HostChannel) if field.name != "name")
_ENUMS: Mapping[str, tuple[str, type[enum.Enum]]] = {
    "mode": ("input mode", InputMode),
    "data_type": ("s3_data_type", DataType),
    "distribution": ("distribution", DataDistribution),
    "compression": ("compression", Compression),
    "record_wrapping": ("record wrapping", RecordWrapping),
}


def _member(channel: str, key: str, value: object) -> enum.Enum:
    what, kind = _ENUMS[key]
    for member in kind:
        if value in (member, member.value):
            return member
    raise ChannelError(f"channel {channel!r}: {unknown(what, value, [member.value for member in kind])}")
