"""Convert the processes of a job to ranks. Most names contain the rank (``rank 3``). The names ``chief`` and ``worker``
do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from container.contract.strategies import ParameterServer
from container.contract.wire import rank_of
from estimators.job.errors import FleetfitError
from estimators.job.request import TrainingJobSpec
from estimators.records.record import JobRecord

#: A function that returns the rank of a process. Its arguments are the process's host and the process's name (None for
#: the host's toolkit). It returns None if the process is not a rank.
Numbering = Callable[[str, "str | None"], "int | None"]


def numbering(spec: TrainingJobSpec) -> Numbering:
    """Return a function that numbers a job's ranks in the same way as :mod:`container.launchers`.

    Args:
        spec: The job.
    """
    strategy = spec.strategy
    if not isinstance(strategy, ParameterServer):
        return by_name
    places = {host: place for place, host in enumerate(spec.hosts)}
    # The chief shares the first host with a worker; the master replaces a worker.
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
    """Return the numbering from a job's record. If the record cannot be read, return the numbering by name."""
    try:
        return numbering(TrainingJobSpec.from_request(record.read_request()))
    except (FleetfitError, OSError, ValueError, KeyError, TypeError):
        return by_name


def known(record: JobRecord) -> frozenset[int]:
    """Return the ranks that a job has, or has had. Return an empty set if the job's record has no information.

    An elastic job may have had more ranks than at its start. Such ranks are included if they have printed output.
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
    """Return a text about ranks, such as ``its only rank is 0`` or ``its ranks are 0 to 3``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"its only rank is {ordered[0]}"
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"its ranks are {ordered[0]} to {ordered[-1]}"
    return f"its ranks are {', '.join(map(str, ordered))}"


def by_name(host: str, process: str | None) -> int | None:
    """Return the rank that a process's name contains, such as 3 for ``rank 3``. Return None if the name contains no
    rank.
    """
    return rank_of(process)
