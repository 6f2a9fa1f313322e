"""Look for the packages of the extra ``service``, which every server needs."""

from __future__ import annotations

import importlib.util

from estimators.job.errors import UnsupportedError


def check() -> None:
    """Refuse to serve without them.

    Raises:
        UnsupportedError: one is not installed.
    """
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise UnsupportedError(f"{name} is not installed, but is needed here: run `fleetfit install service`.")
