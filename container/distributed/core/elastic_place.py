"""Wait until a worker of an elastic job is assigned its rank in the cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def take_place(*imports: Callable[[], object]) -> None:
    """Import the script's libraries, then wait until this worker of an elastic Horovod job is assigned its rank.

    The other workers train during the imports and the wait. ``hook/sitecustomize.py`` has set ``sys._fleetfit_place``,
    whose method ``wait`` returns when the rank is assigned. If the job is not elastic, this attribute does not exist,
    and this function returns at once without importing the libraries.

    Args:
        imports: Functions that import the script's libraries.
    """
    place: Any = getattr(sys, "_fleetfit_place", None)
    if place is not None:
        for load in imports:
            load()
        place.wait()
