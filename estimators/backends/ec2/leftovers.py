"""Fleets that nobody uses any more: what ``fleetfit clean --ec2`` finds by its tags, and removes."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import socket

from estimators.backends.base import Finding, Leftover
from estimators.backends.ec2 import remover
from estimators.backends.ec2.api import ERRORS, Ec2Api, Remains, failure_of
from estimators.job.errors import BackendError, ConfigurationError
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
    except ERRORS as error:
        raise BackendError(f"a request to EC2 failed: {failure_of(error).explain()}.") from error


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


def findings() -> list[Finding]:
    """Say whether EC2 can be asked, and what is left of fleets of ours."""
    try:
        api = Ec2Api()
        there = api.remains()
    except (*ERRORS, ConfigurationError) as error:
        reason = str(error if isinstance(error, ConfigurationError) else failure_of(error)).rstrip(".")
        return [Finding(name="ec2", ok=None, text=f"not set up: {reason}")]
    count = sum(len(fleet.instances) for fleet in there)
    text = f"region {api.region}; {count} instances of fleetfit's jobs are running" if there else f"region {api.region}"
    return [Finding(name="ec2", ok=True, text=text, remedy="`fleetfit clean --ec2` removes unused resources")]
