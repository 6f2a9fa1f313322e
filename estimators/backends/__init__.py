"""Where a cluster runs: backends, looked up by the instance type and imported on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from container.contract.names import unknown
from estimators.job.errors import UnsupportedError
from estimators.job.fleets import FLEETS

if TYPE_CHECKING:
    from estimators.backends.base import Backend


def load(name: str) -> type[Backend]:
    """Return the class of a backend of the table.

    Raises:
        UnsupportedError: there is none of that name.
    """
    if name in FLEETS:
        module, _, attribute = FLEETS[name].backend.partition(":")
        backend: type[Backend] = getattr(importlib.import_module(module), attribute)
        return backend
    raise UnsupportedError(unknown("instance_type", name, FLEETS))
