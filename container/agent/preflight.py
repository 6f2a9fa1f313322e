"""Find errors in a job's data before the job starts (``agent check``).

The host's Python runs this program, because the result depends on the host's boto3, credentials and endpoints. To be
quick, the program checks only the beginning of a large manifest, and does not check whether each object can be read.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from container.agent import cache, sources
from container.agent.s3 import stream
from container.contract.channels import DataType, HostChannel, InputMode
from container.contract.errors import AgentError, ConfigurationError
from container.system.locations import is_s3

#: Maximum number of a manifest's entries to check.
_ENTRIES = 1000


def main(argv: Sequence[str] = ()) -> int:
    """Check the data that standard input names as JSON: ``{"channels": {…}, "writes": {argument: URI}}``.

    Returns:
        0 if the data is usable. 1 after an error. In this case, one line on standard error names the channel or the
        argument.
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
        AgentError: a channel has no data, or its manifest is invalid. The message names the first such channel.
    """
    for channel in channels:
        try:
            _check_channel(channel)
        except AgentError as error:
            raise AgentError(f"channel {channel.name!r}: {error}") from None


def _check_channel(channel: HostChannel) -> None:
    cache.limit()  # raises an error for an invalid environment variable
    if is_s3(channel.uri):
        stream.connections()
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
    """Check that each S3 bucket into which the job writes exists.

    Args:
        writes: The URIs to which the job writes, by the name of the argument that sets the URI (such as
            ``output_path``).

    Raises:
        AgentError: a bucket does not exist or cannot be listed. The message names the argument.
    """
    for argument, uri in writes.items():
        from container.agent.s3 import client

        bucket, _ = client.split(uri)
        try:
            client.call(uri, lambda: client.client().list_objects_v2(Bucket=bucket, MaxKeys=1))  # noqa: B023 - at once
        except AgentError as error:
            raise AgentError(f"{argument}: {error}") from None
