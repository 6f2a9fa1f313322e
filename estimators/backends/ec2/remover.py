"""Removes a fleet when its supervisor releases it or ends: ``python -m estimators.backends.ec2.remover``.

The input is a pipe whose other end only the supervisor has. When the input ends, for whatever reason, the fleet's
instances are terminated, and everything else is removed. This needs the supervisor's machine and valid credentials. If
either is lost, the timers on the hosts end the hosts, and ``fleetfit clean --ec2`` removes the rest.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from estimators.backends.ec2.api import ERRORS, Ec2Api
from estimators.job.errors import FleetfitError

#: How long to try, and how long to wait before each further time, in seconds. A security group can be removed when the
#: last instance has ended, which takes a minute or more.
_PATIENCE_S, _WAIT_S = 600.0, 3.0


def remove(api: Ec2Api, fleet: str, *, patience: float = _PATIENCE_S, wait: float = _WAIT_S) -> list[str]:
    """Remove a fleet, again and again until nothing is left of it.

    Returns:
        What is left after all, or why nobody knows.
    """
    until = time.monotonic() + patience
    empty = 0
    while True:
        try:
            left = api.remove(fleet)
        except ERRORS as error:
            left = [str(error)]
        empty = 0 if left else empty + 1
        # What was launched just before may not be seen at the first look.
        if empty > 1 or time.monotonic() > until:
            return left
        time.sleep(wait)


def main(argv: Sequence[str] | None = None) -> int:
    """Wait for the end of the input, then remove the fleet.

    Returns:
        0 when nothing is left, else 1.
    """
    parser = argparse.ArgumentParser(description="Remove a fleet when standard input ends.")
    for name in ("--fleet", "--region", "--profile"):
        parser.add_argument(name)
    parser.add_argument("--wait", type=float, default=_WAIT_S)
    arguments = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what is said to the job is not said to us
    api = Ec2Api(region=arguments.region, profile=arguments.profile)  # while everything is there to be read
    while os.read(0, 4096):
        pass
    try:
        return 1 if remove(api, arguments.fleet, wait=arguments.wait) else 0
    except FleetfitError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
