"""Define the classes with which users describe a job's input channels.

Names and defaults are those of the SageMaker SDK 2.x (``sagemaker.inputs``).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any, Protocol

from container.contract import rules
from container.contract.names import shown, suggests_arguments
from estimators.job.errors import ConfigurationError
from estimators.job.request import InputChannel

#: The name of the channel if the argument ``inputs`` is not a dict.
DEFAULT_CHANNEL = "training"

#: The module that writes Spark's DataFrames. It is imported on use.
_FRAMES = "estimators.backends.spark.frames"


class Configured(Protocol):
    """A :class:`TrainingInput` or a :class:`FileSystemInput`, of this package or of the SageMaker SDK."""

    config: dict[str, Any]


class SparkFrame(Protocol):
    """A DataFrame of Spark."""

    @property
    def sparkSession(self) -> Any: ...


#: The type of the argument ``inputs`` of ``fit()``. The values of a dict have the type Any, because mypy would
#: otherwise refuse a variable whose inferred type is ``dict[str, object]``.
Inputs = str | os.PathLike[str] | Configured | SparkFrame | Mapping[str, Any] | None


@suggests_arguments
class ShuffleConfig:
    """Shuffle the order in which a channel's objects and manifest entries are read.

    Args:
        seed: The seed of the random order.
    """

    def __init__(self, seed: int) -> None:
        self.seed = rules.whole(0, (1 << 63) - 1)("ShuffleConfig(seed=…)", seed)

    def __repr__(self) -> str:
        return f"ShuffleConfig(seed={self.seed})"


@suggests_arguments
class TrainingInput:
    """The location of a channel's data, and how the script reads it.

    Args:
        s3_data: ``s3://bucket/prefix``, ``file:///folder`` or a path. A relative path is relative to the working
            directory of this process.
        distribution: ``"FullyReplicated"`` to send all objects to every host. ``"ShardedByS3Key"`` to send a different
            subset of the objects to each host.
        compression: ``"Gzip"`` to decompress objects, in Pipe mode only.
        content_type: The MIME type of the data. The script can read this value.
        record_wrapping: ``"RecordIO"`` to wrap objects in records, in Pipe mode only.
        s3_data_type: ``"S3Prefix"``, ``"ManifestFile"`` or ``"AugmentedManifestFile"``.
        instance_groups: The names of the instance groups that get the data.
        input_mode: ``"File"``, ``"Pipe"`` or ``"FastFile"``. The value overrides the estimator's input mode.
        attribute_names: The attributes to read from an augmented manifest.
        target_attribute_name: An argument for SageMaker AutoML. Any value except None is refused, because training jobs
            do not have this setting.
        shuffle_config: The seed for shuffling the order of the objects, or None.

    Attributes:
        config: The channel in the form of ``CreateTrainingJob``, without the channel's name.
    """

    def __init__(
        self,
        s3_data: str | os.PathLike[str],
        distribution: str | None = None,
        compression: str | None = None,
        content_type: str | None = None,
        record_wrapping: str | None = None,
        s3_data_type: str = "S3Prefix",
        instance_groups: list[str] | None = None,
        input_mode: str | None = None,
        attribute_names: list[str] | None = None,
        target_attribute_name: str | None = None,
        shuffle_config: ShuffleConfig | None = None,
    ) -> None:
        given: dict[str, Any] = {}
        for name, value, rule in (
            ("distribution", distribution, rules.one_of("FullyReplicated", "ShardedByS3Key")),
            ("compression", compression, rules.one_of("Gzip", "None")),
            ("record_wrapping", record_wrapping, rules.one_of("RecordIO", "None")),
            ("s3_data_type", s3_data_type, rules.one_of("S3Prefix", "ManifestFile", "AugmentedManifestFile")),
            ("input_mode", input_mode, rules.one_of("File", "Pipe", "FastFile")),
            ("content_type", content_type, rules.text()),
            ("attribute_names", attribute_names, rules.words()),
            ("instance_groups", instance_groups, rules.words()),
        ):
            if value is not None:
                given[name] = rule(f"TrainingInput({name}=…)", value)
        if target_attribute_name is not None:
            raise ConfigurationError(
                f"TrainingInput(target_attribute_name={shown(target_attribute_name)}): this argument is for SageMaker "
                "AutoML, and training jobs do not have it. Leave the argument out."
            )
        if shuffle_config is not None and not hasattr(shuffle_config, "seed"):
            raise ConfigurationError(
                f"TrainingInput(shuffle_config=…) must be a ShuffleConfig(seed), got {shown(shuffle_config)}."
            )
        source: dict[str, Any] = {
            "S3DataType": s3_data_type,
            "S3Uri": normalise_uri(s3_data),
            "S3DataDistributionType": given.get("distribution", "FullyReplicated"),
        }
        for member, name in (("AttributeNames", "attribute_names"), ("InstanceGroupNames", "instance_groups")):
            if name in given:
                source[member] = list(given[name])
        self.config: dict[str, Any] = {"DataSource": {"S3DataSource": source}}
        for member, name in (
            ("CompressionType", "compression"), ("ContentType", "content_type"),
            ("RecordWrapperType", "record_wrapping"), ("InputMode", "input_mode"),
        ):  # fmt: skip
            if name in given:
                self.config[member] = given[name]
        if shuffle_config is not None:
            self.config["ShuffleConfig"] = {"Seed": shuffle_config.seed}

    @classmethod
    def from_spark(
        cls,
        dataframe: Any,
        *,
        format: str = "tfrecord",
        shards: int | None = None,
        path: str | os.PathLike[str] | None = None,
        distribution: str = "ShardedByS3Key",
        **arguments: Any,
    ) -> TrainingInput:
        """Write a Spark DataFrame to files and a manifest with Spark's executors.

        The same content (rows in any order, schema, number of shards) is written only once.

        Args:
            dataframe: A DataFrame of a classic Spark session, not of Spark Connect.
            format: ``"tfrecord"`` or ``"parquet"``. With ``"tfrecord"``, each row becomes a TensorFlow Example with a
                feature for each column. The executors then need TensorFlow.
            shards: The number of files. None for one file for each partition of the DataFrame.
            path: The folder for the files. All executors and this process must have access to the folder. The default
                is the session's ``spark.fleetfit.store``. With ``local`` masters, the default is a folder beside the
                jobs' records.
            distribution: ``"ShardedByS3Key"`` to send a different subset of the files to each host.
                ``"FullyReplicated"`` to send all files to every host.
            arguments: More arguments of ``TrainingInput``.

        Returns:
            The channel that contains the files.

        Raises:
            ConfigurationError: ``dataframe`` is not a DataFrame, or a column cannot be written. The message names the
                column.
            UnsupportedError: the DataFrame is from Spark Connect, or is a stream.
            BackendError: Spark failed.
        """
        for name in ("s3_data", "s3_data_type"):
            if name in arguments:
                raise ConfigurationError(f"from_spark() sets {name} to the manifest that it writes. Leave {name}= out.")
        frames = importlib.import_module(_FRAMES)
        manifest = frames.write(dataframe, format, shards, path)
        given = {"content_type": frames.FORMATS[format], "s3_data_type": "ManifestFile", **arguments}
        return cls(manifest, distribution=distribution, **given)

    def __repr__(self) -> str:
        return f"TrainingInput({self.config['DataSource']['S3DataSource']['S3Uri']!r})"


@suggests_arguments
class FileSystemInput:
    """A folder of an Amazon EFS or FSx for Lustre file system, for jobs on SageMaker.

    Args:
        file_system_id: The ID of the file system, such as ``fs-…``.
        file_system_type: ``"EFS"`` or ``"FSxLustre"``.
        directory_path: The absolute path of the folder.
        file_system_access_mode: ``"ro"`` or ``"rw"``.
        content_type: The MIME type of the data. The script can read this value.

    Attributes:
        config: The channel in the form of ``CreateTrainingJob``, without the channel's name.
    """

    def __init__(
        self,
        file_system_id: str,
        file_system_type: str,
        directory_path: str,
        file_system_access_mode: str = "ro",
        content_type: str | None = None,
    ) -> None:
        for name, value, rule in (
            ("file_system_type", file_system_type, rules.one_of("EFS", "FSxLustre")),
            ("file_system_access_mode", file_system_access_mode, rules.one_of("ro", "rw")),
            ("file_system_id", file_system_id, rules.text()),
            ("directory_path", directory_path, rules.text()),
            ("content_type", content_type, rules.or_none(rules.text())),
        ):
            rule(f"FileSystemInput({name}=…)", value)
        self.config: dict[str, Any] = {
            "DataSource": {
                "FileSystemDataSource": {
                    "FileSystemId": file_system_id,
                    "FileSystemType": file_system_type,
                    "DirectoryPath": directory_path,
                    "FileSystemAccessMode": file_system_access_mode,
                }
            }
        }
        if content_type:
            self.config["ContentType"] = content_type

    def __repr__(self) -> str:
        source = self.config["DataSource"]["FileSystemDataSource"]
        return f"FileSystemInput({source['FileSystemId']!r}, {source['FileSystemType']!r}, {source['DirectoryPath']!r})"


def parse_inputs(inputs: Any) -> tuple[InputChannel, ...]:
    """Read the ``inputs`` argument of ``fit()``.

    Args:
        inputs: None, a location, or a dict of locations by channel names. A location is a path, a URI, a
            :class:`TrainingInput`, a :class:`FileSystemInput` or a DataFrame of Spark. The input classes of the
            SageMaker SDK are accepted too. A single location becomes the channel ``training``.

    Raises:
        ConfigurationError: the value has none of these types.
    """
    if inputs is None:
        return ()
    if not isinstance(inputs, Mapping):
        return (_channel(DEFAULT_CHANNEL, inputs),)
    for name in inputs:
        if not isinstance(name, str):
            raise ConfigurationError(f"inputs: the name of a channel must be a string, got {shown(name)}.")
    return tuple(_channel(name, value) for name, value in inputs.items())


def model_channel(model_uri: str | os.PathLike[str], name: str) -> InputChannel:
    """Return the input channel for a pre-trained model.

    Args:
        model_uri: The location of the model.
        name: The name of the channel.
    """
    given = TrainingInput(model_uri, input_mode="File", content_type="application/x-sagemaker-model")
    return InputChannel.from_request({**given.config, "ChannelName": name})


def normalise_uri(location: Any) -> str:
    """Return a location in normal form. A URI is returned unchanged. A path is made absolute.

    Raises:
        ConfigurationError: the value is neither a path nor a URI, or is a ``file://`` URI that names a different
            machine or has no absolute path.
    """
    if not isinstance(location, str | os.PathLike) or isinstance(location, bytes):
        raise ConfigurationError(
            f"{shown(location)} is not a location of data: give a path, file:///folder, s3://bucket/prefix, a "
            "TrainingInput or a FileSystemInput."
        )
    text = os.fspath(location)
    if not text:
        raise ConfigurationError("the location of the data is empty: give a path or a URI.")
    rules.passable("data", text)
    if text.startswith("file://"):
        path = text[len("file://") :]
        if path.startswith("localhost/"):
            path = path[len("localhost") :]
        if not path.startswith("/"):
            raise ConfigurationError(
                f"{shown(text)}: a file:// URI needs an absolute path, as in 'file:///home/me/data'."
            )
        return f"file://{path}"
    if "://" in text:
        return text
    return os.path.abspath(os.path.expanduser(text))


def _channel(name: str, value: Any) -> InputChannel:
    config: Any
    if isinstance(value, str | os.PathLike):
        config = TrainingInput(value).config
    else:
        if type(value).__module__.partition(".")[0] == "pyspark":
            value = TrainingInput.from_spark(value)
        config = getattr(value, "config", None)
        if not isinstance(config, Mapping):
            raise ConfigurationError(
                f"inputs: channel {name!r} is {shown(value)}. Give a path, a URI, a TrainingInput or a FileSystemInput."
            )
    channel = InputChannel.from_request({**config, "ChannelName": name})
    source = channel.source.s3
    if source is not None:  # the SageMaker SDK's input classes do not make relative paths absolute
        config = channel.to_request()
        config["DataSource"]["S3DataSource"]["S3Uri"] = normalise_uri(source.uri)
        channel = InputChannel.from_request(config)
    return channel
