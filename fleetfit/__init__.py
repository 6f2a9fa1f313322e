"""Export the names of :mod:`estimators` under the project's name: ``from fleetfit import TensorFlow``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators import *  # noqa: F403
else:
    import estimators
    from container.contract.public import exports

    # Only the names are exported, because a module that is imported under two names would exist twice.
    __all__, __getattr__, __dir__ = exports(__name__, estimators.__file__)
    del estimators, exports
