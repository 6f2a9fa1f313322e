"""Interpret a job's specification for the local backends, which run hosts on machines that fleetfit reaches itself.

The functions resolve URIs to paths on this machine, and describe the input channels. They change no files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from container.contract import channels
from container.system.locations import is_s3, path_here
from estimators.backends.config import INSTANCE_GROUP, input_mode
from estimators.job.errors import ConfigurationError
from estimators.job.request import InputChannel, TrainingJobSpec

#: The number of an epoch in the name of a FIFO, as a regular expression. Trainings have fewer than 1,000 epochs.
_EPOCH = r"0|[1-9]\d{0,2}"


def channel_refusal(spec: TrainingJobSpec, channel: InputChannel) -> str | None:
    """Return why the local backends do not support a channel. Return None if they support the channel."""
    if channel.source.file_system is not None:
        return (
            "EFS and FSx file systems exist only on AWS, and FileSystemInput is only for jobs on SageMaker. Give this "
            "job a path, for example on a mounted file system."
        )
    s3 = channel.source.s3
    if s3 is None:
        return "no data source is given."
    if not is_s3(s3.uri) and path_here(s3.uri) is None:
        return f"{s3.uri} cannot be read. Give s3://bucket/prefix, a path or a file:// URI."
    if s3.instance_groups and set(s3.instance_groups) != {INSTANCE_GROUP}:
        return (
            f"instance_groups {list(s3.instance_groups)}: a local job has only the group {INSTANCE_GROUP!r}. Leave "
            "instance_groups out."
        )
    stem, _, number = channel.name.rpartition("_")
    pipes = piped(spec) if spec.ranks_per_host == 1 else []
    if re.fullmatch(_EPOCH, number) and stem in pipes and channel.name not in pipes:
        return (
            f"its folder would have the name of a FIFO of channel {stem!r}, which is in Pipe mode: {stem}_0, {stem}_1 "
            "and so on. Rename one of the two channels."
        )
    try:
        agent_channel(spec, channel)
    except ConfigurationError as error:
        return str(error).partition(": ")[2]
    return None


def agent_channels(spec: TrainingJobSpec) -> dict[str, dict[str, Any]]:
    """Return the description of each channel that has an S3 source or a path, by the channel's name.

    The host agent, a fleetfit process on the host, provides the channels. See
    :class:`container.contract.channels.HostChannel`.

    Raises:
        ConfigurationError: options of a channel exclude each other.
    """
    return {
        channel.name: agent_channel(spec, channel).to_dict() for channel in spec.inputs if channel.source.s3 is not None
    }


def agent_channel(spec: TrainingJobSpec, channel: InputChannel) -> channels.HostChannel:
    """Return the description of a channel for the host agent.

    Raises:
        ConfigurationError: options of the channel exclude each other.
    """
    s3 = channel.source.s3
    assert s3 is not None  # channel_refusal refuses file systems
    given: dict[str, Any] = {
        "uri": s3.uri,
        "mode": input_mode(spec, channel),
        "data_type": s3.data_type,
        "distribution": s3.distribution,
        "compression": channel.compression,
        "record_wrapping": channel.record_wrapper,
        "shuffle_seed": channel.shuffle.seed if channel.shuffle is not None else None,
        "attribute_names": list(s3.attribute_names),
        "content_type": channel.content_type,
    }
    return channels.HostChannel.from_dict(
        channel.name, {key: value for key, value in given.items() if value is not None}
    )


def mounted(spec: TrainingJobSpec) -> bool:
    """Return whether the job has a channel that is read from S3 in FastFile mode."""
    return any(
        input_mode(spec, channel) == "FastFile" and channel.source.s3 is not None and is_s3(channel.source.s3.uri)
        for channel in spec.inputs
    )


def filed(spec: TrainingJobSpec) -> list[str]:
    """Return the names of the channels that scripts read as files. Scripts read all other channels as FIFOs."""
    return [channel.name for channel in spec.inputs if input_mode(spec, channel) != "Pipe"]


def linked(spec: TrainingJobSpec) -> list[str]:
    """Return the names of the channels in FastFile mode. Hosts read these channels' files without copying the files."""
    return [channel.name for channel in spec.inputs if input_mode(spec, channel) == "FastFile"]


def piped(spec: TrainingJobSpec) -> list[str]:
    """Return the names of the channels in Pipe mode."""
    return [channel.name for channel in spec.inputs if input_mode(spec, channel) == "Pipe"]


def checkpoint_dir(spec: TrainingJobSpec) -> Path | None:
    """Return the checkpoint folder that the job names, if the folder is on this machine. Otherwise, return None."""
    return path_here(spec.checkpoint.uri) if spec.checkpoint is not None else None


def synced_checkpoints(spec: TrainingJobSpec) -> str | None:
    """Return the S3 prefix with which fleetfit synchronises the checkpoints, or None if the job has none."""
    return spec.checkpoint.uri if spec.checkpoint is not None and is_s3(spec.checkpoint.uri) else None


def synced_intermediate(spec: TrainingJobSpec) -> str | None:
    """Return the S3 prefix for intermediate output during the job. Return None if the output path is not on S3."""
    uri = output_uri(spec)
    return f"{uri}/intermediate" if is_s3(uri) else None


def output_uri(spec: TrainingJobSpec) -> str:
    """Return ``<output path>/<job>/output``, which is a path on this machine or an S3 prefix."""
    folder = output_dir(spec)
    return str(folder) if folder is not None else f"{spec.output.path.rstrip('/')}/{spec.name}/output"


def output_dir(spec: TrainingJobSpec) -> Path | None:
    """Return the path ``<output path>/<job>/output``. Return None if the output path is not on this machine."""
    path = path_here(spec.output.path)
    return path / spec.name / "output" if path is not None else None
