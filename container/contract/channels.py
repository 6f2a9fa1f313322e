"""Define the settings of a job's input channels. A backend sends these settings to the agent of each host, which
provides the data.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from container.contract import rules
from container.contract.errors import ConfigurationError
from container.contract.frozen import dataclass
from container.contract.rules import option

_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_")  # SageMaker's ChannelName
_MAX_ATTRIBUTES = 16  # SageMaker's limit of AttributeNames


class InputMode(enum.Enum):
    """The way in which a script reads a channel."""

    FILE = "File"
    PIPE = "Pipe"
    FAST_FILE = "FastFile"


class Channel(str):
    """The argument that a function gets for a channel, if the job's entry point is a function. The value is the path in
    ``SM_CHANNEL_<NAME>``.

    A Channel is a ``str``. Therefore ``open()``, ``os.path`` and ``Path()`` accept a Channel. In Pipe mode, the paths
    of the FIFOs begin with the channel's path. Pass the channel's :attr:`name` to
    :class:`container.pipe_dataset.PipeModeDataset`.

    Args:
        path: The path of the channel's folder.
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
    """The kind of data that a channel's URI refers to (SageMaker's S3DataType)."""

    PREFIX = "S3Prefix"
    MANIFEST = "ManifestFile"
    AUGMENTED_MANIFEST = "AugmentedManifestFile"


class DataDistribution(enum.Enum):
    """The way in which a channel's objects are distributed over the hosts (SageMaker's S3DataDistributionType)."""

    REPLICATED = "FullyReplicated"
    SHARDED = "ShardedByS3Key"


class Compression(enum.Enum):
    """The compression of a channel's objects."""

    NONE = "None"
    GZIP = "Gzip"


class RecordWrapping(enum.Enum):
    """The format in which a channel's stream wraps each object."""

    NONE = "None"
    RECORDIO = "RecordIO"


@dataclass(frozen=True, kw_only=True)
class HostChannel:
    """One input channel of a job.

    Attributes:
        name: The name of the channel, as in ``SM_CHANNEL_<NAME>``.
        uri: The ``s3://bucket/prefix``, ``file://`` URL or absolute path of a folder, a file or a manifest.
        mode: The way in which the script reads the channel.
        data_type: The kind of data that ``uri`` refers to.
        distribution: The way in which the objects are distributed over the hosts.
        compression: The compression of the objects. Only channels in Pipe mode may have a compression.
        record_wrapping: The format in which the stream wraps each object. Only channels in Pipe mode may have such a
            format.
        shuffle_seed: The seed for shuffling objects and manifest entries. None to keep the order. In File mode, files
            have no order, and the seed only determines which objects each host gets.
        attribute_names: The names of the attributes to read from each line of an augmented manifest, in the order of
            reading.
        content_type: The MIME type of the data, for the script's information.

    Raises:
        ConfigurationError: a value is not one of the allowed values, or two values exclude each other.
    """

    name: str
    uri: str
    mode: InputMode = option(rules.member(InputMode), InputMode.FILE)
    data_type: DataType = option(rules.member(DataType), DataType.PREFIX)
    distribution: DataDistribution = option(rules.member(DataDistribution), DataDistribution.REPLICATED)
    compression: Compression = option(rules.member(Compression), Compression.NONE)
    record_wrapping: RecordWrapping = option(rules.member(RecordWrapping), RecordWrapping.NONE)
    shuffle_seed: int | None = option(rules.whole(-(1 << 63)))
    attribute_names: tuple[str, ...] = option(rules.words(empty=True), ())
    content_type: str | None = option(rules.string)

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 64 or not _NAME.issuperset(self.name) or self.name in (".", ".."):
            raise ConfigurationError(
                f"channel {self.name!r}: a name has 1 to 64 letters, digits, dots, hyphens and underscores."
            )
        rules.check(self, f"channel {self.name!r}: {{name}}")
        problem = self._problem()
        if problem is not None:
            raise ConfigurationError(f"channel {self.name!r}: {problem}")

    def _problem(self) -> str | None:
        """Return an error message if two settings exclude each other. Otherwise return None.

        The rules are SageMaker's.
        """
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
        """Create a channel from the result of :meth:`to_dict`.

        Raises:
            ConfigurationError: a key is unknown, a value has the wrong type, or the settings are invalid as described
                for the class.
        """
        if not isinstance(values, Mapping) or not isinstance(values.get("uri"), str):
            raise ConfigurationError(f"channel {name!r} needs a 'uri'; got {values!r}.")
        made: HostChannel = rules.from_dict(cls, {**values, "name": name}, f"channel {name!r}: key")
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict of the settings. The dict does not contain the name, nor settings that have
        their default value. It always contains ``mode``.
        """
        values = rules.to_dict(self)
        for field in dataclasses.fields(self):
            if field.name == "name" or (field.name != "mode" and getattr(self, field.name) == field.default):
                del values[field.name]
        return values
