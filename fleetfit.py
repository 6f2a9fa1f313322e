"""The names of :mod:`estimators` under the project's name: ``from fleetfit import TensorFlow``."""

from __future__ import annotations

from typing import Any

import estimators

__all__ = estimators.__all__


def __getattr__(name: str) -> Any:
    return getattr(estimators, name)


def __dir__() -> list[str]:
    return dir(estimators)
