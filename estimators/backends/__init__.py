"""Find the backend class of an instance type. A backend runs the hosts of a job, for example as containers.

A backend's module is imported when the backend is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from container.contract.names import unknown
from estimators.job.errors import UnsupportedError
from estimators.job.fleets import find, names

if TYPE_CHECKING:
    from estimators.backends.base import Backend, ManagedService


def load(name: str) -> type[Backend]:
    """Return the backend class of an instance type.

    Raises:
        UnsupportedError: the instance type has no backend.
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

    return cluster_over(found)  # a provider only supplies hosts; HostCluster runs jobs on these hosts


def load_service(name: str) -> type[ManagedService]:
    """Return the backend class of an instance type whose hosts belong to a managed service.

    Raises:
        UnsupportedError: the instance type has no backend, or the backend is not a managed service.
    """
    from estimators.backends.base import ManagedService

    found = load(name)
    if not issubclass(found, ManagedService):
        raise UnsupportedError(f"{name!r} is not a managed service.")
    return found
