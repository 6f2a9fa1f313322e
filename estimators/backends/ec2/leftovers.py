"""Remove a fleet when its supervisor has ended, and find unused fleets for ``fleetfit clean --ec2``.

A fleet is all instances and other resources that one start of a supervisor creates for its job.

The fleet is removed from the supervisor's machine, which needs valid credentials. If this machine is off or the
credentials have expired, the timers on the hosts shut the hosts down, and ``fleetfit clean --ec2`` removes the rest.
"""

from __future__ import annotations

import collections
import contextlib
import getpass
import os
import socket
import time
from collections.abc import Sequence

from container.contract.frozen import dataclass
from estimators.backends.base import Leftover
from estimators.backends.ec2 import requests
from estimators.backends.ec2.api import ERRORS, Ec2Api, Resource, reason_of
from estimators.job.errors import BackendError
from estimators.records.record import jobs_folder

#: Seconds for which a removal is tried: after a job, and in `fleetfit clean`. The third value is the number of seconds
#: between two attempts. A security group can be removed only when the last instance has ended, which takes a minute or
#: more.
_PATIENCE_S, _PERSONS_PATIENCE_S, _WAIT_S = 600.0, 180.0, 3.0


@dataclass(frozen=True, kw_only=True)
class FleetLeftover(Leftover):
    """A fleet that a job has left behind.

    Attributes:
        region: The region of the fleet.
        fleet: The value of the fleet's tag.
    """

    region: str
    fleet: str

    def remove(self) -> None:
        """Terminate the fleet's instances, and remove its other resources. See :meth:`Leftover.remove`."""
        left = remove_fleet(Ec2Api(region=self.region), self.fleet, patience=_PERSONS_PATIENCE_S)
        if left:
            raise BackendError(f"{', '.join(left)} could not be removed yet. Try again")


def owner() -> str:
    """Return the value of the owner tag for new fleets. It consists of the user, this machine and the folder of
    records.
    """
    name = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        name = getpass.getuser()
    return f"{name}@{socket.gethostname()}:{jobs_folder()}"[:256]


def find(region: str) -> list[Leftover]:
    """Return the fleets of this user's jobs on this machine. The fleets of running jobs are included.

    Args:
        region: The region to search. If "", boto3's default region is searched.

    Raises:
        BackendError: a request to EC2 failed.
    """
    fleets: dict[str, list[Resource]] = collections.defaultdict(list)
    try:
        api = Ec2Api(region=region or None)
        for one in api.resources():
            if one.tags.get(requests.OWNER_TAG) == owner():
                fleets[one.tags[requests.FLEET_TAG]].append(one)
    except ERRORS as error:
        raise BackendError(f"a request to EC2 failed: {reason_of(error)}.") from error
    return [_leftover(api.region, fleet, resources) for fleet, resources in fleets.items()]


def _leftover(region: str, fleet: str, resources: Sequence[Resource]) -> Leftover:
    job = resources[0].tags.get(requests.JOB_TAG, "")
    count = sum(one.kind == "instance" for one in resources)
    held = [f"{count} instance{'s' if count != 1 else ''}"]
    held += [f"{one.kind} {one.name}" for one in resources if one.kind != "instance"]
    text = f"{', '.join(held)} in {region}"
    return FleetLeftover(kind="fleet", name=job or fleet, job=job, text=text, region=region, fleet=fleet)


def remove(*, fleet: str, region: str, profile: str | None, wait: float) -> bool:
    """Remove a fleet whose supervisor has ended. See :mod:`estimators.backends.hosts.remover`.

    Returns:
        Whether all resources of the fleet were removed.
    """
    return not remove_fleet(Ec2Api(region=region, profile=profile), fleet, wait=wait)


def remove_fleet(api: Ec2Api, fleet: str, *, patience: float = _PATIENCE_S, wait: float = _WAIT_S) -> list[str]:
    """Remove a fleet. Retry until two successive attempts find no resources.

    Args:
        api: The client of EC2.
        fleet: The tag of the fleet.
        patience: The number of seconds for which the removal is tried.
        wait: The number of seconds between two tries.

    Returns:
        The resources that still exist after ``patience`` seconds, or the last error. An empty list on success.
    """
    until = time.monotonic() + patience
    empty = 0
    while True:
        try:
            left = api.remove(fleet)
        except ERRORS as error:
            left = [str(error)]
        empty = 0 if left else empty + 1
        # EC2 may not yet list instances that were launched a moment ago. The second attempt may therefore find more.
        if empty > 1 or time.monotonic() > until:
            return left
        time.sleep(wait)
