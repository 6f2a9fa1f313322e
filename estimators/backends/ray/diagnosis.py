"""What ``fleetfit doctor`` says of Ray, and whether it can be used at all; nothing of Ray is imported for it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from pathlib import Path

from estimators.backends.hosts.provider import Finding

#: The oldest Ray whose placement groups select nodes by labels.
OLDEST = (2, 49)
_INSTALL = "pip install 'fleetfit[ray]'"


#: What the client of Ray's Jobs API needs, which Ray itself does not bring.
_OF_JOBS = ("aiohttp", "requests")


def refusal(*, jobs: bool = False) -> str | None:
    """Return why Ray cannot be used in this environment, with the remedy; None if it can.

    Args:
        jobs: Whether jobs are to be submitted with the Jobs API.
    """
    version = _version()
    if version is None:
        return f"Ray is not installed here; {_INSTALL}."
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return f"Ray {version} is installed here, and {wanted} or newer is needed, the cluster's own: {_INSTALL}."
    lacking = [name for name in _OF_JOBS if jobs and importlib.util.find_spec(name) is None]
    if lacking:
        return f"Ray's client for jobs needs {' and '.join(lacking)}, which is not installed here; {_INSTALL}."
    return None


def _version() -> str | None:
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return None


def findings() -> list[Finding]:
    """Say whether there is Ray, and which cluster a job would join."""
    version = _version()
    if version is None:
        return [Finding(name="ray", ok=True, text=f"not installed; {_INSTALL} for jobs on a Ray cluster")]
    if (reason := refusal()) is not None:
        return [Finding(name="ray", ok=False, text=reason, remedy=_INSTALL)]
    address = os.environ.get("RAY_ADDRESS")
    where = f"RAY_ADDRESS is {address}"
    if not address:
        try:
            where = f"a cluster was started on this machine, at {_current().read_text(encoding='utf-8').strip()}"
        except OSError:
            where = "no cluster is known here (RAY_ADDRESS): a job would start a local one"
    return [Finding(name="ray", ok=True, text=f"Ray {version}; {where}")]


def _current() -> Path:
    """Where ``ray start`` notes the address of the cluster."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(folder) / "ray" / "ray_current_cluster"
