"""Determine the ranks of a job's processes from their names.

Most names contain the rank, such as ``rank 3``. For the names ``chief``, ``master`` and ``worker``, the rank follows
from the job's strategy and the process's host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from container.contract.strategies import ParameterServer
from container.contract.wire import rank_of
from estimators.job.errors import FleetfitError
from estimators.job.request import TrainingJobSpec
from estimators.records.record import JobRecord

#: A function that returns the rank of a process, or None if the process is not a rank. Its arguments are the name of
#: the process's host, and the name of the process (None for the toolkit, the program that starts the host's processes).
Numbering = Callable[[str, "str | None"], "int | None"]


def numbering(spec: TrainingJobSpec) -> Numbering:
    """Return a function that maps the processes of a job to the ranks that :mod:`container.launchers` gives them.

    Args:
        spec: The job.
    """
    strategy = spec.strategy
    if not isinstance(strategy, ParameterServer):
        return by_name
    places = {host: place for place, host in enumerate(spec.hosts)}
    # The chief shares the first host with a worker, so that the ranks of the workers begin at 1. A master takes the
    # place of the first host's worker.
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
    """Return the function that maps the processes of a recorded job to their ranks.

    If the record cannot be read, return :func:`by_name`.
    """
    try:
        return numbering(TrainingJobSpec.from_request(record.read_request()))
    except (FleetfitError, OSError, ValueError, KeyError, TypeError):
        return by_name


def known(record: JobRecord) -> frozenset[int]:
    """Return the ranks that a job has, or has had. Return an empty set if the record cannot be read.

    An elastic job may later have more ranks than at its start. These additional ranks are included if they have printed
    output.
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
    """Return a text for error messages, such as ``its only rank is 0`` or ``its ranks are 0 to 3``."""
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
