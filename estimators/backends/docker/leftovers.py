"""Containers and networks whose job is over: what a crashed machine left on the engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from estimators.backends.docker import warm
from estimators.backends.docker.containers import JOB_LABEL, RECORD_LABEL
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.engine_errors import EngineError
from estimators.records.record import JobRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leftover:
    """One of them.

    Attributes:
        kind: ``container`` or ``network``.
        id: Its id on the engine.
        name: Its name.
        job: The job that it was of.
    """

    kind: str
    id: str
    name: str
    job: str


def find() -> list[Leftover]:
    """What is labelled as a job's and has no supervisor any more; nothing where there is no engine."""
    try:
        containers, networks = Engine().leftovers()
    except EngineError:
        return []
    found = []
    for kind, items in (("container", containers), ("network", networks)):
        for item in items:
            labels = item.get("Labels") or {}
            record, pool = labels.get(RECORD_LABEL), labels.get(warm.POOL_LABEL)
            try:
                if record and JobRecord(Path(record)).is_supervised():
                    continue
                if pool and warm.is_used(Path(pool)):
                    continue
            except PermissionError:
                continue  # another user's
            name = str(item.get("Name") or (item.get("Names") or ["?"])[0]).lstrip("/")
            found.append(Leftover(kind=kind, id=str(item["Id"]), name=name, job=labels.get(JOB_LABEL, "?")))
    return found


def remove(leftover: Leftover) -> None:
    """Remove it.

    Raises:
        EngineError: it cannot be.
    """
    engine = Engine()
    if leftover.kind == "container":
        engine.remove_container(leftover.id)
    else:
        engine.remove_network(leftover.id)
