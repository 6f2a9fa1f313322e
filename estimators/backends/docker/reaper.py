"""Remove a job's containers and network when its supervisor is over: see :mod:`estimators.backends.hosts.remover`.

Containers are the engine's children, not the supervisor's: a supervisor that was killed would leave them running.
Kept containers are removed when their time is over, unless the next job has taken them (:mod:`.kept`).
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

#: The engine may be in the middle of making something that its list does not show yet: nothing may have been found for
#: so long, in seconds.
_QUIET = 1.0
#: When it gives up, in seconds. What is left then, `fleetfit clean` finds.
_DEADLINE = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Duty:
    """What is removed and given back when a supervisor is over.

    Attributes:
        job: The job.
        label: Everything with this label and ``value`` is removed from the engine.
        value: A record's folder, or a pool's, which is removed too.
        runtime: The job's folder for sockets and secrets.
        image: The image whose tools give files back.
        trees: Folders of the job alone: what containers wrote there becomes the calling user's.
        shared: Folders that others use too: only what is root's or the image's user's.
    """

    job: str
    label: str
    value: str
    runtime: str = ""
    image: str = ""
    trees: Sequence[str] = ()
    shared: Sequence[str] = ()


def remove(**given: Any) -> bool:
    """Remove everything, a pool when its time is over.

    Args:
        given: The fields of the :class:`Duty`.

    Returns:
        Whether nothing is left to do.
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
    """Remove what is on the engine until nothing has been found for a time.

    Raises:
        EngineError: it cannot be removed.
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
