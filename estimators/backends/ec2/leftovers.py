"""Fleets that nobody uses any more: what ``fleetfit clean --ec2`` finds by its tags, and removes."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import socket

from botocore.exceptions import BotoCoreError, ClientError

from estimators.backends.base import Leftover
from estimators.backends.ec2 import remover, requests
from estimators.backends.ec2.api import Ec2Api, Remains, failure_of
from estimators.job.errors import BackendError
from estimators.records.record import jobs_folder

#: For how long a removal is tried, in seconds.
_PATIENCE_S = 180.0


def owner() -> str:
    """Return who makes a fleet, for its tags: the user, this machine, and where the jobs' records are."""
    name = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        name = getpass.getuser()
    return f"{name}@{socket.gethostname()}:{jobs_folder()}"[:256]


def find(region: str) -> list[Leftover]:
    """Return the fleets of this user's jobs here, those that run among them.

    Args:
        region: Where to look; "": as boto3 finds it.

    Raises:
        BackendError: EC2 cannot be asked.
    """
    try:
        api = Ec2Api(region=region or None)
        return [_leftover(api.region, one) for one in api.remains() if one.owner == owner()]
    except (BotoCoreError, ClientError) as error:
        raise BackendError(f"a request to EC2 failed: {requests.explain(_failure(error))}.") from error


def _leftover(region: str, remains: Remains) -> Leftover:
    count = len(remains.instances)
    held = [f"{count} instance{'s' if count != 1 else ''}", *remains.others]
    return Leftover(
        kind="fleet",
        name=remains.job or remains.fleet,
        job=remains.job,
        text=f"{', '.join(held)} in {region}",
        remove=functools.partial(_remove, region, remains.fleet),
    )


def _remove(region: str, fleet: str) -> None:
    left = remover.remove(Ec2Api(region=region), fleet, patience=_PATIENCE_S)
    if left:
        raise BackendError(f"{', '.join(left)} could not be removed yet. Try again")


def _failure(error: Exception) -> requests.Shortage:
    found = failure_of(error)
    assert found is not None
    return found
