"""Find the class of a dispatcher. A dispatcher runs a job's supervisor on another machine or cluster."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.backends.dispatchers.base import Dispatcher

#: Dispatcher's name -> its class as ``module:name``, imported on use. Any other name is a machine that ssh reaches.
KINDS = {"ray": "estimators.backends.dispatchers.ray:RayDispatcher"}
_SSH = "estimators.backends.dispatchers.ssh:SshDispatcher"


def load(place: str) -> type[Dispatcher]:
    """Return the class of the dispatcher that ``RunOptions(dispatcher=…)`` names."""
    module, _, name = KINDS.get(place, _SSH).partition(":")
    found: type[Dispatcher] = getattr(importlib.import_module(module), name)
    return found
