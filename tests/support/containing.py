"""What the tests of containers share."""

from __future__ import annotations

import clusters

from estimators import TensorFlow
from estimators.backends.docker.engine import Engine

#: Seconds in which everything of a job must be gone from the engine.
GONE = 5.0

#: A script that waits to be stopped.
WAITING = """
import signal, sys, time
import aid

def save(number, frame):
    aid.mark(f"saved-{aid.HOST}")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
aid.mark(f"ready-{aid.RANK}")
time.sleep(300)
"""


def left(engine: Engine, job: str) -> list[str]:
    """What of a job is on the engine."""
    containers, networks = engine.leftovers({"fleetfit.job": job})
    return [str(item.get("Names") or item.get("Name")) for item in (*containers, *networks)]


def await_gone(engine: Engine, job: str) -> None:
    clusters.until(lambda: not left(engine, job))


def plain_job(plain: str, **settings: object) -> TensorFlow:
    return TensorFlow(**{"image_uri": plain, "instance_type": "local", "instance_count": 2, **settings})
