"""Input channels: a job's data, put where the container contract says (``/opt/ml/input/data/<channel>``).

File mode of local folders and files, by links: nothing is copied.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

from container.agent import AgentError
from container.contract.layout import MLTree
from container.contract.names import unknown
from container.locations import LocationError, local_path

MODES = ("File",)
_KEYS = ("uri", "mode")
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_")  # SageMaker's ChannelName


@dataclasses.dataclass(frozen=True, kw_only=True)
class Channel:
    """One channel.

    Attributes:
        name: Its name, as in ``SM_CHANNEL_<NAME>``.
        uri: A ``file://`` URL or an absolute path of a folder or a file.
        mode: How the script reads it; ``File`` only so far.

    Raises:
        AgentError: the name or the mode is none.
    """

    name: str
    uri: str
    mode: str = "File"

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 64 or not _NAME.issuperset(self.name) or self.name in (".", ".."):
            raise AgentError(
                f"channel {self.name!r}: a name has 1 to 64 letters, digits, dots, hyphens and underscores."
            )
        if self.mode not in MODES:
            raise AgentError(f"channel {self.name!r}: {unknown('input mode', self.mode, MODES)}")


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
        if not isinstance(values, dict) or not isinstance(values.get("uri"), str):
            raise AgentError(f"{file}: channel {name!r} needs a 'uri'; got {values!r}.")
        for key in values:
            if key not in _KEYS:
                raise AgentError(f"{file}: channel {name!r}: {unknown('key', key, _KEYS)}")
        channels.append(Channel(name=name, **values))
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
            _link(channel, tree.channel(channel.name))
    except OSError as error:
        raise AgentError(
            f"{error.filename or tree.data}: the channels cannot be put there: {error.strerror}."
        ) from error


def _link(channel: Channel, place: Path) -> None:
    source = _source(channel)
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


def _source(channel: Channel) -> Path:
    """The channel's folder or file, readable."""
    try:
        path = local_path(channel.uri)
    except LocationError as error:
        raise AgentError(f"channel {channel.name!r}: {error}") from None
    try:
        path = path.resolve(strict=True)
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise AgentError(f"channel {channel.name!r}: {channel.uri!r} does not exist.") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, before Python 3.13
        raise AgentError(f"channel {channel.name!r}: {channel.uri!r} cannot be read: {error}.") from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise AgentError(f"channel {channel.name!r}: {channel.uri!r} is neither a folder nor a file.")
    if not os.access(path, os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK):
        raise AgentError(f"channel {channel.name!r}: {channel.uri!r} cannot be read by this user; change its mode.")
    return path
