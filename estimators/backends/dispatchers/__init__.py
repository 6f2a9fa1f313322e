"""Where a job's supervisor runs that is not on this machine: dispatchers, looked up by what they are called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.backends.dispatchers.base import Dispatcher

#: What a dispatcher is called -> its class, ``module:name``, imported on use. Everything else is ssh's.
KINDS = {"ray": "estimators.backends.dispatchers.ray:RayDispatcher"}
_SSH = "estimators.backends.dispatchers.ssh:SshDispatcher"


def load(place: str) -> type[Dispatcher]:
    """Return the class of the dispatcher that ``RunOptions(dispatcher=…)`` names."""
    module, _, name = KINDS.get(place, _SSH).partition(":")
    found: type[Dispatcher] = getattr(importlib.import_module(module), name)
    return found
