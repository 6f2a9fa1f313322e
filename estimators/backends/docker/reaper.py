"""Remove a job's containers and network when its supervisor has ended. See :mod:`estimators.backends.hosts.remover`.

Containers are child processes of the engine and not of the supervisor. Without this module, they would continue after
the supervisor was killed. Kept containers are removed when the keep time has ended, unless the next job has claimed
them (:mod:`.kept`).
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from container.system.removing import remove_tree
from estimators.backends.docker import kept, ownership
from estimators.backends.docker.engine import Engine
from estimators.backends.images.errors import EngineError

#: Seconds without a finding after which the removal is complete: the engine may still be creating something that its
#: lists do not show yet.
_QUIET = 1.0
#: Seconds after which the reaper stops. `fleetfit clean` then finds the remaining containers and networks.
_DEADLINE = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Duty:
    """The cleanup after a supervisor has ended.

    Attributes:
        job: The job.
        label: Everything with this label and ``value`` is removed from the engine.
        value: A record's folder, or a pool's, which is removed, too.
        runtime: The job's folder for sockets and secrets.
        image: The image whose tools change the owner of files.
        trees: Folders that only the job uses: the calling user becomes the owner of everything in them.
        shared: Folders that others use, too: the calling user becomes the owner of files of root or of the image's user
            only.
    """

    job: str
    label: str
    value: str
    runtime: str = ""
    image: str = ""
    trees: Sequence[str] = ()
    shared: Sequence[str] = ()


def remove(**given: Any) -> bool:
    """Remove everything that belongs to a job. For a pool, wait until its keep time has ended.

    Args:
        given: The fields of the :class:`Duty`.

    Returns:
        Whether everything was removed, or another job has claimed the pool.
    """
    duty, engine = Duty(**given), Engine()
    remove_tree(duty.runtime, ignore_errors=True)
    pool = kept.ContainerPool(Path(duty.value)) if duty.label == kept.POOL_LABEL else None
    if pool is not None and not pool.await_end(duty.job):
        return True
    try:
        _remove_all(engine, {duty.label: duty.value})
        if pool is not None:
            remove_tree(pool.path, ignore_errors=True)
        ownership.give_back(engine, duty, engine.image(duty.image).user)
    except (EngineError, OSError) as error:
        print(f"fleetfit: the job's containers could not be removed, or their files not given back: {error}",
              file=sys.stderr)  # fmt: skip
        return False
    return True


def _remove_all(engine: Engine, labels: dict[str, str]) -> None:
    """Remove all containers and networks with the given labels. Stop when no container or network was found for
    ``quiet`` seconds.

    Raises:
        EngineError: a container or network cannot be removed.
    """
    since = time.monotonic()
    until = since + _DEADLINE
    while time.monotonic() - since < _QUIET:
        try:
            if engine.remove_all(labels):
                since = time.monotonic()
        except EngineError:
            if time.monotonic() > until:
                raise
            since = time.monotonic()
        time.sleep(0.05)
