"""Wait until a worker of an elastic job is assigned its rank in the cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def take_place(*imports: Callable[[], object]) -> None:
    """Import the script's libraries, then wait until this worker of an elastic Horovod job is assigned its rank.

    The other workers train during the imports and the wait. In any process that need not wait for a rank, this function
    returns at once without importing the libraries. In a process that must wait, ``hook/sitecustomize.py`` has set
    ``sys._fleetfit_place``. The method ``wait`` of this object returns when the rank is assigned.

    Args:
        imports: Functions that import the script's libraries.
    """
    place: Any = getattr(sys, "_fleetfit_place", None)
    if place is not None:
        for load in imports:
            load()
        place.wait()
