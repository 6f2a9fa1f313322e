"""What ``fleetfit doctor`` says of Ray, and whether it can be used at all; nothing of Ray is imported for it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from estimators.backends.engine import EnginePackage
from estimators.backends.hosts.provider import Finding

#: Placement groups select nodes by labels from 2.49 on.
_RAY = EnginePackage("Ray", "ray", (2, 49), extra="ray", note=" (the cluster's version)")
#: What the client of Ray's Jobs API needs, which Ray itself does not bring.
_OF_JOBS = ("aiohttp", "requests")


def refusal(*, jobs: bool = False) -> str | None:
    """Return why Ray cannot be used in this environment, with the remedy; None if it can.

    Args:
        jobs: Whether jobs are to be submitted with the Jobs API.
    """
    if (reason := _RAY.refusal()) is not None:
        return reason
    lacking = [name for name in _OF_JOBS if jobs and importlib.util.find_spec(name) is None]
    if lacking:
        return f"Ray's client for jobs needs {' and '.join(lacking)}, which is not installed here. Run {_RAY.remedy}."
    return None


def findings() -> list[Finding]:
    """Say whether there is Ray, and which cluster a job would join."""
    address = os.environ.get("RAY_ADDRESS")
    where = f"RAY_ADDRESS is {address}"
    if not address:
        try:
            where = f"a cluster was started on this machine, at {_current().read_text(encoding='utf-8').strip()}"
        except OSError:
            where = "RAY_ADDRESS is not set, and this machine has started no cluster: a job would start a local cluster"
    return [_RAY.finding("ray", "jobs on a Ray cluster", where)]


def _current() -> Path:
    """Where ``ray start`` notes the address of the cluster."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(folder) / "ray" / "ray_current_cluster"
