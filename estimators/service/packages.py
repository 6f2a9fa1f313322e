"""Check that the packages of the extra ``service`` are installed, which every server of fleetfit needs."""

from __future__ import annotations

import importlib.util

from estimators.job.errors import UnsupportedError


def check() -> None:
    """Check that the packages are installed.

    Raises:
        UnsupportedError: a package is not installed.
    """
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise UnsupportedError(f"{name} is not installed, but is needed here: run `fleetfit install service`.")
