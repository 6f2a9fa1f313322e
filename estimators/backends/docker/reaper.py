"""Removes a job's containers and network when its supervisor is over, however that came about.

Containers are the engine's children, not the supervisor's: a supervisor that was killed would leave them running. This
process holds the other end of a pipe; when that ends it removes everything with the label of the job's record, or of
the pool that the job ran in, unless that is kept for the next job: then it waits for that as long as the job said, and
serves it likewise. Then it gives back to the calling user what the containers wrote as others. :mod:`.reapers` starts
it, and says what its words mean.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from container.system.removing import remove_tree
from estimators.backends.docker import keeping
from estimators.backends.docker.reapers import Duty

if TYPE_CHECKING:
    from estimators.backends.docker.engine import Engine

#: The engine may be in the middle of making something that its list does not show yet: nothing may have been found for
#: so long, in seconds.
_QUIET = 1.0
#: When it gives up, in seconds. What is left then, `fleetfit clean` finds.
_DEADLINE = 60.0


def main(said: bytes, text: str) -> int:
    """Do a duty.

    Args:
        said: What the supervisor wrote at its end.
        text: The duty, see :class:`.reapers.Duty`.

    Returns:
        0, or 1 when something is left.
    """
    duty = Duty.from_text(text)
    while said.startswith(b"keep "):
        _remove_folders(duty)
        job = keeping.wait_for_job(Path(duty.value), float(said.split()[1]))
        said = b"done"
        if job is not None:
            with job, job.makefile("rb") as words:
                first, said = words.readline(), words.read()
            duty = Duty.from_text(first.decode()) if first else duty
    return _remove(duty, 0.0 if said == b"done" else _QUIET)


def _remove(duty: Duty, quiet: float) -> int:
    from estimators.backends.docker import ownership, warm  # the next job of kept containers does not wait for these
    from estimators.backends.docker.engine import Engine, EngineError

    engine = Engine()
    try:
        _remove_all(engine, duty, quiet)
    except EngineError as error:
        print(f"fleetfit: the job's containers could not be removed: {error}", file=sys.stderr)
        return 1
    if duty.label == warm.POOL_LABEL:
        remove_tree(duty.value, ignore_errors=True)
    _remove_folders(duty)
    try:
        ownership.give_back_all(engine, duty, engine.image(duty.image).user)
    except (EngineError, OSError) as error:
        print(f"fleetfit: the owner of the containers' files could not be changed: {error}", file=sys.stderr)
    return 0


def _remove_all(engine: Engine, duty: Duty, quiet: float) -> None:
    """Remove what is on the engine until nothing has been found for a time.

    Raises:
        EngineError: it cannot be removed.
    """
    from estimators.backends.docker.engine import EngineError

    since = time.monotonic()
    until = since + _DEADLINE
    while True:
        try:
            if engine.remove_all({duty.label: duty.value}):
                since = time.monotonic()
            elif time.monotonic() - since >= quiet:
                return
        except EngineError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)


def _remove_folders(duty: Duty) -> None:
    for folder in duty.remove:
        remove_tree(folder, ignore_errors=True)
