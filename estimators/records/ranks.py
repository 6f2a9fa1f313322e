"""Maps the processes of a job to ranks: most names contain the rank (``rank 3``); a chief's and its workers' do not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from container.contract.strategies import ParameterServer
from container.contract.wire import rank_of
from estimators.job.errors import FleetfitError
from estimators.job.request import TrainingJobSpec
from estimators.records.record import JobRecord

#: #: Returns the rank of a process, given its host and name (None: the host's toolkit); None if it is not a rank.
Numbering = Callable[[str, "str | None"], "int | None"]


def numbering(spec: TrainingJobSpec) -> Numbering:
    """Return the numbering of a job's ranks, as :mod:`container.launchers` plans them.

    Args:
        spec: The job.
    """
    strategy = spec.strategy
    if not isinstance(strategy, ParameterServer):
        return by_name
    places = {host: place for place, host in enumerate(spec.hosts)}
    # # The chief shares the first host with a worker; the master replaces a worker.
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
    """Return the numbering from a job's record; if it cannot be read, the numbering by name alone."""
    try:
        return numbering(TrainingJobSpec.from_request(record.read_request()))
    except (FleetfitError, OSError, ValueError, KeyError, TypeError):
        return by_name


def known(record: JobRecord) -> frozenset[int]:
    """Return the ranks that a job has had, or has from its start; empty if its record has no information.

    An elastic job may have had more ranks than it was started with; those that have printed something count.
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
    """Return a text about ranks: ``its only rank is 0``, ``its ranks are 0 to 3``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"its only rank is {ordered[0]}"
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"its ranks are {ordered[0]} to {ordered[-1]}"
    return f"its ranks are {', '.join(map(str, ordered))}"


def by_name(host: str, process: str | None) -> int | None:
    """Return the rank that a process's name contains: 3 for ``rank 3``; None without one."""
    return rank_of(process)
