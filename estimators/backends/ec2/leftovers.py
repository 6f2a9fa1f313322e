"""Fleets that nobody uses any more: what ``fleetfit clean --ec2`` finds by its tags, and removes."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import socket
from collections.abc import Callable

from botocore.exceptions import BotoCoreError, ClientError

from estimators.backends.ec2 import remover, requests
from estimators.backends.ec2.api import Ec2Api, Remains, failure_of
from estimators.job.errors import BackendError
from estimators.records.record import jobs_folder

#: For how long a removal is tried, in seconds.
_PATIENCE_S = 180.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leftover:
    """A fleet without its job.

    Attributes:
        region: Where it is.
        remains: What there is of it.
    """

    region: str
    remains: Remains


def owner() -> str:
    """Return who makes a fleet, for its tags: the user, this machine, and where the jobs' records are."""
    name = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        name = getpass.getuser()
    return f"{name}@{socket.gethostname()}:{jobs_folder()}"[:256]


def find(region: str | None, running: Callable[[str], bool]) -> list[Leftover]:
    """Return the fleets of this user's jobs here that do not run any more.

    Args:
        region: Where to look; None: as boto3 finds it.
        running: Says whether a job of a name runs.

    Raises:
        BackendError: EC2 cannot be asked.
    """
    try:
        api = Ec2Api(region=region)
        return [
            Leftover(region=api.region, remains=one)
            for one in api.remains()
            if one.owner == owner() and not running(one.job)
        ]
    except (BotoCoreError, ClientError) as error:
        raise BackendError(f"EC2 cannot be asked: {requests.explain(_failure(error))}.") from error


def remove(leftover: Leftover) -> None:
    """Remove a fleet.

    Raises:
        BackendError: something of it is left.
    """
    left = remover.remove(Ec2Api(region=leftover.region), leftover.remains.fleet, patience=_PATIENCE_S)
    if left:
        raise BackendError(f"{', '.join(left)} could not be removed yet; try again")


def _failure(error: Exception) -> requests.Shortage:
    found = failure_of(error)
    assert found is not None
    return found
