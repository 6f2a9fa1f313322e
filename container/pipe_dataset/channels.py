"""Read the configuration of a channel in Pipe mode from the job's configuration files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from container.contract.names import unknown
from container.pipe_dataset import places
from container.pipe_dataset.faults import PipeError

_SHARDED = "ShardedByS3Key"


def holds(distribution: str, local_size: int) -> str:
    """Return which records of a channel a process gets.

    Args:
        distribution: The channel's ``S3DistributionType``.
        local_size: The number of ranks that read on this host.

    Returns:
        "all" if every process gets all records, "host" if the process gets all records of its host, or "rank" if each
        rank of the host gets different records.
    """
    if distribution != _SHARDED:
        return "all"
    return "rank" if local_size > 1 else "host"


def distribution(channel: str, config_dir: str | os.PathLike[str] | None) -> str:
    """Return the channel's ``S3DistributionType`` from the job's configuration.

    Args:
        channel: The name of the channel.
        config_dir: The folder of ``inputdataconfig.json``. If None, the job's folder, by default
            ``/opt/ml/input/config``.

    Raises:
        PipeError: the job has no such channel, or the channel is not in Pipe mode.
    """
    if config_dir is not None:
        folder = Path(config_dir)
    else:
        folder = Path(os.environ.get("SM_INPUT_CONFIG_DIR") or places.tree(os.environ).config)
    file = folder / "inputdataconfig.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipeError(
            f"{file} does not exist: PipeModeDataset reads a training job's channel. Outside of a job, give "
            "config_dir and pipe_dir, or read the files with TFRecordDataset."
        ) from None
    except (OSError, ValueError) as error:
        raise PipeError(f"{file} cannot be read: {error}.") from error
    if channel not in config:
        raise PipeError(unknown("channel", channel, config))
    mode = str(config[channel].get("TrainingInputMode", "File"))
    if mode.lower() != "pipe":
        raise PipeError(
            f"channel {channel!r} is in {mode} mode. Give the job TrainingInput(…, input_mode='Pipe'), or read the "
            "files in the channel's folder."
        )
    return str(config[channel].get("S3DistributionType") or "FullyReplicated")
