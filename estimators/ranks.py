"""Which processes of a job are ranks: most say so in their names (``rank 3``), a chief and its workers do not."""

from __future__ import annotations

from collections.abc import Callable

from container.contract.strategies import ParameterServer
from container.contract.wire import rank_of
from estimators.errors import FleetfitError
from estimators.jobs.record import JobRecord
from estimators.spec import TrainingJobSpec

#: From a host and the name of one of its processes (None: its toolkit) to the rank, or None for what is none.
Numbering = Callable[[str, "str | None"], "int | None"]


def numbering(spec: TrainingJobSpec) -> Numbering:
    """How the ranks of a job are numbered; as :mod:`container.launchers` plans them.

    Args:
        spec: The job.
    """
    strategy = spec.strategy
    if not isinstance(strategy, ParameterServer):
        return by_name
    places = {host: place for place, host in enumerate(spec.hosts)}
    # The chief is on the first host beside a worker, the master in a worker's place.
    first = 1 if strategy.cluster_spec == "coordinator" else 0
    workers_run_the_script = strategy.script_on == "all" or strategy.cluster_spec == "sagemaker"

    def of(host: str, process: str | None) -> int | None:
        if process in ("chief", "master"):
            return 0
        if process == "worker" and workers_run_the_script and host in places:
            return places[host] + first
        return None

    return of


def of_record(record: JobRecord) -> Numbering:
    """The same from a job's record; by name alone where it cannot be read (any more)."""
    try:
        return numbering(TrainingJobSpec.from_request(record.read_request()))
    except (FleetfitError, OSError, ValueError, KeyError, TypeError):
        return by_name


def by_name(host: str, process: str | None) -> int | None:
    """``3`` for ``rank 3``."""
    return rank_of(process)
