"""Where a cluster runs: backends, looked up by the instance type and imported on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from container.contract.names import unknown
from estimators.job.errors import UnsupportedError
from estimators.job.fleets import find, names

if TYPE_CHECKING:
    from estimators.backends.base import Backend, ManagedService


def load(name: str) -> type[Backend]:
    """Return the class of a backend of the table.

    Raises:
        UnsupportedError: there is none of that name.
    """
    fleet = find(name)
    if fleet is None:
        raise UnsupportedError(unknown("instance_type", name, names()))
    module, _, attribute = fleet.backend.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    from estimators.backends.base import Backend

    if issubclass(found, Backend):
        backend: type[Backend] = found
        return backend
    from estimators.backends.hosts.cluster import cluster_over

    return cluster_over(found)  # a provider of hosts: what is done with them is written once


def load_service(name: str) -> type[ManagedService]:
    """Return the class of a managed service of the table, whose capabilities say that it is one.

    Raises:
        UnsupportedError: there is none of that name, or it is none.
    """
    from estimators.backends.base import ManagedService

    found = load(name)
    if not issubclass(found, ManagedService):
        raise UnsupportedError(f"{name!r} is not a managed service.")
    return found
