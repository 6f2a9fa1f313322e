"""Which processes of a job are ranks: most say so in their names (``rank 3``), a chief and its workers do not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from container.contract.strategies import ParameterServer
from container.contract.wire import rank_of
from estimators.job.errors import FleetfitError
from estimators.job.request import TrainingJobSpec
from estimators.records.record import JobRecord

#: From a host and the name of one of its processes (None: its toolkit) to the rank, or None for what is none.
Numbering = Callable[[str, "str | None"], "int | None"]


def numbering(spec: TrainingJobSpec) -> Numbering:
    """Return how the ranks of a job are numbered, as :mod:`container.launchers` plans them.

    Args:
        spec: The job.
    """
    strategy = spec.strategy
    if not isinstance(strategy, ParameterServer):
        return by_name
    places = {host: place for place, host in enumerate(spec.hosts)}
    # The chief is on the first host beside a worker, the master in a worker's place.
    first = 1 if strategy.coordinated else 0
    workers_run_the_script = strategy.script_on == "all"

    def of(host: str, process: str | None) -> int | None:
        if process in ("chief", "master"):
            return 0
        if process == "worker" and workers_run_the_script and host in places:
            return places[host] + first
        return None

    return of


def of_record(record: JobRecord) -> Numbering:
    """Return the numbering from a job's record; by name alone where it cannot be read."""
    try:
        return numbering(TrainingJobSpec.from_request(record.read_request()))
    except (FleetfitError, OSError, ValueError, KeyError, TypeError):
        return by_name


def known(record: JobRecord) -> frozenset[int]:
    """Return the ranks that a job has had, or has from its start; empty where its record does not tell.

    An elastic job may have had more than those that it was started with: what printed is on record.
    """
    number = of_record(record)
    found = {number(host, process) for host in record.hosts for process in record.processes(host)}
    with contextlib.suppress(FleetfitError, OSError, ValueError, KeyError, TypeError):
        spec = TrainingJobSpec.from_request(record.read_request())
        if isinstance(spec.strategy, ParameterServer):
            found |= {number(host, process) for host in spec.hosts for process in ("chief", "master", "worker")}
        else:
            found |= set(range(spec.size))
    return frozenset(rank for rank in found if rank is not None)


def span_text(ranks: Iterable[int]) -> str:
    """Describe ranks in words: ``its only rank is 0``, ``its ranks are 0 to 3``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"its only rank is {ordered[0]}"
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"its ranks are {ordered[0]} to {ordered[-1]}"
    return f"its ranks are {', '.join(map(str, ordered))}"


def by_name(host: str, process: str | None) -> int | None:
    """Return ``3`` for ``rank 3``."""
    return rank_of(process)
