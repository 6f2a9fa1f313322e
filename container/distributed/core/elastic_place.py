"""Wait for an elastic worker's place in the cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def take_place(*imports: Callable[[], object]) -> None:
    """In an elastic job of Horovod's, import everything first, then wait for this worker's place.

    Meanwhile the others train. See ``hook/sitecustomize.py``, where the place comes from.

    Args:
        imports: Import what the script needs.
    """
    place: Any = getattr(sys, "_fleetfit_place", None)
    if place is not None:
        for load in imports:
            load()
        place.wait()
