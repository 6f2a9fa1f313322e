"""The names of :mod:`estimators` under the project's name: ``from fleetfit import TensorFlow``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import estimators

if TYPE_CHECKING:
    from estimators import *  # noqa: F403

__all__ = estimators.__all__


def __getattr__(name: str) -> Any:
    # No more than these: a module that was imported under two names would be there twice.
    if name in __all__:
        return getattr(estimators, name)
    raise AttributeError(f"module 'fleetfit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
