"""Input channels: a job's data, put where the container contract says (``/opt/ml/input/data/<channel>``).

File mode of local folders and files, by links: nothing is copied.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from container.agent import AgentError
from container.agent.sources import local
from container.contract.channels import Channel, ChannelError, InputMode
from container.contract.layout import MLTree


def read_channels(file: Path) -> tuple[Channel, ...]:
    """Read the channels' file.

    Raises:
        AgentError: it cannot be read, or its content is not as described in :mod:`container.agent`.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AgentError(f"{file}: the channels cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise AgentError(f"{file}: the channels must be an object of channel names; got {content!r}.")
    channels = []
    for name, values in content.items():
        try:
            channels.append(Channel.from_dict(name, values))
        except ChannelError as error:
            raise AgentError(f"{file}: {error}") from None
    return tuple(channels)


def prepare(base_dir: Path, channels: tuple[Channel, ...]) -> None:
    """Put the channels into a host's tree; what an earlier attempt put there is kept or replaced.

    A folder becomes a link to it; a file becomes a folder with a link to it, since a script is given a folder.

    Raises:
        AgentError: a channel's data cannot be read, or something of another kind is in its place.
    """
    tree = MLTree(base_dir)
    try:
        tree.data.mkdir(parents=True, exist_ok=True)
        for channel in channels:
            if channel.mode is not InputMode.FILE:
                raise AgentError(f"channel {channel.name!r}: input mode {channel.mode.value!r} is not available here.")
            _link(channel, tree.channel(channel.name))
    except OSError as error:
        raise AgentError(
            f"{error.filename or tree.data}: the channels cannot be put there: {error.strerror}."
        ) from error


def _link(channel: Channel, place: Path) -> None:
    try:
        source = local.resolve(channel.uri)
    except AgentError as error:
        raise AgentError(f"channel {channel.name!r}: {error}") from None
    if source.is_dir():
        _make_link(source, place, channel)
        return
    if place.is_symlink():
        place.unlink()
    place.mkdir(exist_ok=True)
    _make_link(source, place / source.name, channel)


def _make_link(source: Path, place: Path, channel: Channel) -> None:
    if place.is_symlink():
        if os.readlink(place) == str(source):
            return
        place.unlink()
    elif place.is_dir() and not any(place.iterdir()):
        place.rmdir()
    elif place.exists():
        raise AgentError(f"channel {channel.name!r}: {place} is there already and is not a link; remove it.")
    place.symlink_to(source)
