"""Put a job's data where the container contract requires it (``/opt/ml/input/data/<channel>``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from container.agent import files
from container.agent.progress import Tell
from container.contract.channels import HostChannel, InputMode
from container.contract.environment import host_name
from container.contract.errors import AgentError, ConfigurationError
from container.contract.layout import MLTree
from container.system.locations import is_s3


def read_channels(file: Path) -> tuple[HostChannel, ...]:
    """Read the JSON file that describes the channels.

    Raises:
        AgentError: the file cannot be read, or its content is not as described in :mod:`container.agent`.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AgentError(f"{file}: the channels cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise AgentError(f"{file}: the file must hold a JSON object with channel names as keys; got {content!r}.")
    channels = []
    for name, values in content.items():
        try:
            channels.append(HostChannel.from_dict(name, values))
        except ConfigurationError as error:
            raise AgentError(f"{file}: {error}") from None
    return tuple(channels)


def prepare(
    base_dirs: Sequence[Path],
    channels: Sequence[HostChannel],
    *,
    tell: Tell,
    everybody: bool = False,
    place: tuple[int, int] | None = None,
) -> None:
    """Put the channels of File mode, and the channels of FastFile mode with local data, into the hosts' trees.

    Channels of Pipe mode are served by ``agent pipe``. Channels of FastFile mode with data in S3 are mounted by ``agent
    mount``.

    Args:
        base_dirs: The file trees, in the order of the hosts' ranks.
        channels: The job's channels.
        tell: Receives progress lines and events.
        everybody: Whether any user may write into the channels.
        place: The host's number and the number of hosts, if ``base_dirs`` has only this host's tree. None if
            ``base_dirs`` has the trees of all hosts.

    Raises:
        AgentError: a channel's data cannot be read, or the channel's folder has content that fleetfit did not create.
    """
    trees = [MLTree(base_dir) for base_dir in base_dirs]
    names = [host_name(tree, index) for index, tree in enumerate(trees)]
    for tree in trees:
        try:
            tree.data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AgentError(f"{error.filename or tree.data}: the channels' folder cannot be made: {error}.") from error
    for channel in channels:
        places = [tree.channel(channel.name) for tree in trees]
        try:
            # Local files exist already: FastFile mode needs no mount for them.
            if channel.mode is InputMode.FILE or (channel.mode is InputMode.FAST_FILE and not is_s3(channel.uri)):
                hosts = list(zip(names, places, strict=True))
                files.prepare(channel, hosts, tell=tell, everybody=everybody, place=place)
        except AgentError as error:
            raise AgentError(f"channel {channel.name!r}: {error}") from None
        except OSError as error:
            raise AgentError(
                f"channel {channel.name!r}: {error.filename or places[0]} cannot be written: {error.strerror}."
            ) from error
