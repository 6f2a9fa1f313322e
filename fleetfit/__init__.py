"""Export the names of :mod:`estimators` under the project's name: ``from fleetfit import TensorFlow``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators import *  # noqa: F403
else:
    # Only the names are exported, because a module that is imported under two names would exist twice.
    from estimators import __all__, __dir__, __getattr__  # noqa: F401
