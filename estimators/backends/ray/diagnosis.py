"""Check whether Ray can be used, without importing Ray. ``fleetfit doctor`` uses the check, too."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from estimators.backends.engine import EnginePackage
from estimators.backends.hosts.provider import Finding

#: Version 2.49 is the first in which placement groups select nodes by labels.
_RAY = EnginePackage("Ray", "ray", (2, 49), extra="ray", note=" (the cluster's version)")
#: Packages that the client of Ray's Jobs API needs, and that Ray does not install.
_OF_JOBS = ("aiohttp", "requests")


def refusal(*, jobs: bool = False) -> str | None:
    """Return why Ray cannot be used in this environment, with the remedy. Return None if Ray can be used.

    Args:
        jobs: Whether the job also needs the client of Ray's Jobs API.
    """
    if (reason := _RAY.refusal()) is not None:
        return reason
    lacking = [name for name in _OF_JOBS if jobs and importlib.util.find_spec(name) is None]
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        return (
            f"Ray's client for jobs needs {' and '.join(lacking)}, which {verb} not installed here. Run {_RAY.remedy}."
        )
    return None


def findings() -> list[Finding]:
    """Return a finding about the installation of Ray and about the cluster that a job would join."""
    address = os.environ.get("RAY_ADDRESS")
    where = f"RAY_ADDRESS is {address}"
    if not address:
        try:
            where = f"a cluster was started on this machine, at {_current().read_text(encoding='utf-8').strip()}"
        except OSError:
            where = "RAY_ADDRESS is not set, and this machine has started no cluster: a job would start a local cluster"
    return [_RAY.finding("ray", "jobs on a Ray cluster", where)]


def _current() -> Path:
    """Return the path of the file in which ``ray start`` stores the cluster's address."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(folder) / "ray" / "ray_current_cluster"
