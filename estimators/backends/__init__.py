"""Find the backend of an instance type. A backend runs the hosts of a job, for example as containers.

The module of a backend or of a host provider is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from container.contract.names import unknown
from estimators.job.errors import UnsupportedError
from estimators.job.fleets import find, names

if TYPE_CHECKING:
    from container.system.asyncio_loop import AsyncioLoop
    from estimators.backends.base import Backend, BackendQueries, ManagedService
    from estimators.backends.events import BackendEvents
    from estimators.job.request import JobOptions, TrainingJobSpec
    from estimators.records.record import JobRecord


def load(name: str) -> type[BackendQueries]:
    """Import and return the class of an instance type: its host provider, or its backend if it has no host provider.

    Raises:
        UnsupportedError: the instance type has no backend.
    """
    fleet = find(name)
    if fleet is None:
        raise UnsupportedError(unknown("instance_type", name, names()))
    module, _, attribute = fleet.backend.partition(":")
    found: type[BackendQueries] = getattr(importlib.import_module(module), attribute)
    return found


def create(
    loop: AsyncioLoop, record: JobRecord, spec: TrainingJobSpec, options: JobOptions, events: BackendEvents
) -> Backend:
    """Create the backend of a job. See :class:`estimators.backends.base.Backend` for the arguments."""
    from estimators.backends.base import Backend
    from estimators.backends.hosts.provider import HostProvider

    found = load(options.backend)
    if issubclass(found, HostProvider):
        from estimators.backends.hosts.cluster import HostCluster

        return HostCluster(found, loop, record, spec, options, events)
    assert issubclass(found, Backend)
    return found(loop, record, spec, options, events)


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
