"""Find containers and networks whose job has ended without removing them, for example after a crash of this machine."""

from __future__ import annotations

from pathlib import Path

from container.contract.frozen import dataclass
from estimators.backends.base import Leftover
from estimators.backends.docker import kept
from estimators.backends.docker.containers import JOB_LABEL, RECORD_LABEL
from estimators.backends.docker.engine import Engine
from estimators.backends.images.errors import EngineError
from estimators.records.record import JobRecord


@dataclass(frozen=True, kw_only=True)
class EngineLeftover(Leftover):
    """A container or network that a job has left behind.

    Attributes:
        engine: The engine of the container or network.
        id: The engine's id for the container or network.
    """

    engine: Engine
    id: str

    def remove(self) -> None:
        """Remove the container or network from its engine."""
        if self.kind == "container":
            self.engine.remove_container(self.id)
        else:
            self.engine.remove_network(self.id)


def find() -> list[Leftover]:
    """Return the containers and networks of jobs whose supervisor has ended, and of unused pools.

    A pool is unused if no job uses it and its keep time has ended. Return an empty list if the container engine cannot
    be reached.
    """
    engine = Engine()
    try:
        containers, networks = engine.leftovers()
    except EngineError:
        return []
    found: list[Leftover] = []
    for kind, items in (("container", containers), ("network", networks)):
        for item in items:
            labels = item.get("Labels") or {}
            record, pool = labels.get(RECORD_LABEL), labels.get(kept.POOL_LABEL)
            try:
                in_use = pool and kept.ContainerPool(Path(pool)).in_use
                if in_use or (record and JobRecord(Path(record)).is_supervised()):
                    continue
            except PermissionError:
                continue  # another user's job
            name = str(item.get("Name") or (item.get("Names") or ["?"])[0]).lstrip("/")
            job, id_ = labels.get(JOB_LABEL, "?"), str(item["Id"])
            found.append(EngineLeftover(kind=kind, name=name, job=job, engine=engine, id=id_))
    return found
