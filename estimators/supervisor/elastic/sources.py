"""Select the source that names the places, such as machines, at which an elastic job's hosts can run."""

from __future__ import annotations

from pathlib import Path

from container.contract.strategies import DISCOVERED_BY_CALLER, Elastic
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.base import Backend
from estimators.backends.hosts.discovery import PlaceDiscovery
from estimators.backends.hosts.membership import MembershipSource
from estimators.records.record import DISCOVERED


def of_job(loop: AsyncioLoop, strategy: Elastic, backend: Backend) -> MembershipSource | None:
    """Return the source that names the places for a job's hosts, and the number of workers at each place.

    If the user has set ``discovery``, return the user's source. Otherwise, return the backend's source.

    Returns:
        The source. None if no source limits or names the hosts.
    """
    if strategy.discovery is None:
        return backend.membership()
    by_caller = strategy.discovery == DISCOVERED_BY_CALLER
    folder = backend.record.path
    return PlaceDiscovery(
        loop,
        folder / DISCOVERED if by_caller else Path(strategy.discovery),
        default_slots=strategy.slots or strategy.processes_per_host,
        folder=folder,
        may_come_later=by_caller,
    )
