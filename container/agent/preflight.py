"""``agent check``: find what is wrong with a job's data before anything starts, in a moment.

It is a program of the host's Python, since what it checks depends on that: boto3, credentials, endpoints. The whole of
a large manifest, and whether each object can be read, is seen when the channel is made.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from container.agent import sources
from container.contract.channels import DataType, HostChannel, InputMode
from container.contract.errors import AgentError, ConfigurationError
from container.system.locations import is_s3

#: So many entries of a manifest are looked at.
_ENTRIES = 1000


def main() -> int:
    """Check what standard input names: ``{"channels": {…}, "writes": {argument: URI}}``.

    Returns:
        0; 1 with one line on standard error, which names the channel or the argument.
    """
    try:
        asked = json.load(sys.stdin)
        check_channels(HostChannel.from_dict(name, values) for name, values in asked["channels"].items())
        check_writes(asked["writes"])
    except (AgentError, ConfigurationError) as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


def check_channels(channels: Iterable[HostChannel]) -> None:
    """Check that each channel has data.

    Raises:
        AgentError: the first that has none, or whose manifest is wrong.
    """
    for channel in channels:
        try:
            _check_channel(channel)
        except AgentError as error:
            raise AgentError(f"channel {channel.name!r}: {error}") from None


def _check_channel(channel: HostChannel) -> None:
    if channel.mode is InputMode.FAST_FILE and is_s3(channel.uri):
        from container.agent import mounting

        mounting.check()
    if channel.data_type is DataType.MANIFEST:
        from container.agent.sources import listed

        listed.look_up(channel.uri, listed.read_manifest(channel.uri)[:_ENTRIES])
    elif channel.data_type is DataType.AUGMENTED_MANIFEST:
        for _ in itertools.islice(sources.entries(channel), _ENTRIES):
            pass
    elif is_s3(channel.uri):
        from container.agent.s3 import listing

        listing.listing(channel.uri, limit=1)


def check_writes(writes: Mapping[str, Any]) -> None:
    """Check that the buckets that will be written to are there.

    Raises:
        AgentError: one is not; the message names the argument.
    """
    for argument, uri in writes.items():
        from container.agent.s3 import client

        bucket, _ = client.split(uri)
        try:
            client.call(uri, lambda: client.client().list_objects_v2(Bucket=bucket, MaxKeys=1))  # noqa: B023 - at once
        except AgentError as error:
            raise AgentError(f"{argument}: {error}") from None
