"""Remove a job's containers and network when its supervisor has ended. See :mod:`estimators.backends.hosts.remover`.

Containers are child processes of the engine and not of the supervisor. Without this module, they would continue after
the supervisor was killed. Kept containers end by themselves (:mod:`.kept`), and are removed then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from container.contract.frozen import dataclass
from container.system.removing import remove_tree
from estimators.backends.docker import kept, ownership
from estimators.backends.docker.engine import Engine
from estimators.backends.images.errors import EngineError

#: The removal is complete when nothing to remove was found for this number of seconds. The engine may still be creating
#: a container or network that its lists do not show yet.
_QUIET = 1.0
#: Seconds after which an error of the engine ends the removal. Before, the removal is retried after an error. `fleetfit
#: clean` finds the remaining containers and networks.
_DEADLINE = 60.0


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A description of the cleanup after a job's supervisor has ended.

    Attributes:
        label: The name of a label. Everything with this label and ``value`` is removed from the engine.
        value: The value of the label: the path of the job's record or of a pool's folder. A pool's folder is removed,
            too.
        runtime: The job's folder for sockets and secrets.
        image: The image whose tools change the owner of files.
        trees: Folders that only the job uses. The calling user becomes the owner of everything in these folders.
        shared: Folders that others use, too. The calling user becomes the owner of only those files that belong to root
            or to the image's user.
    """

    label: str
    value: str
    runtime: str = ""
    image: str = ""
    trees: Sequence[str] = ()
    shared: Sequence[str] = ()


def remove(**given: Any) -> bool:
    """Remove a job's containers, network and private folder, and make the user the owner of the job's files. For a pool
    of kept containers, first wait until they have ended.

    Args:
        given: The fields of the :class:`Duty`.

    Returns:
        Whether everything was removed, or the remover of an earlier job will remove the pool.
    """
    duty, engine = Duty(**given), Engine()
    killed = os.path.exists(duty.runtime)  # otherwise the supervisor has removed it
    remove_tree(duty.runtime, ignore_errors=True)
    pool = kept.ContainerPool(Path(duty.value)) if duty.label == kept.POOL_LABEL else None
    if pool is not None and not pool.await_end(engine, killed=killed):
        return True
    try:
        _remove_all(engine, {duty.label: duty.value})
        if pool is not None:
            remove_tree(pool.path, ignore_errors=True)
        ownership.give_back(engine, duty, engine.image(duty.image).user)
    except (EngineError, OSError) as error:
        print(f"fleetfit: removing the job's containers or changing the owner of their files failed: {error}",
              file=sys.stderr)  # fmt: skip
        return False
    return True


def _remove_all(engine: Engine, labels: dict[str, str]) -> None:
    """Remove all containers and networks with the given labels.

    Stop when no container or network was found for ``_QUIET`` seconds.

    Raises:
        EngineError: a container or network could not be removed within ``_DEADLINE`` seconds.
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
