"""Where a cluster runs: backends, looked up by the instance type and imported on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from container.contract.names import unknown
from estimators.errors import UnsupportedError

if TYPE_CHECKING:
    from estimators.backends.base import Backend

#: Backend name -> module and class.
BACKENDS = {
    "local_process": ("estimators.backends.process", "ProcessBackend"),
    "local_fake": ("estimators.backends.fake", "FakeBackend"),
}

#: Backends that the design names and this version does not have.
_MISSING = {
    "local": "containers are not available in this version; 'local_process' runs the same job as processes",
    "local_gpu": "containers are not available in this version; 'local_process' runs the same job as processes",
    "ml": "launching on Amazon SageMaker is not available in this version; 'local_process' runs the same job here",
}


def backend_name(instance_type: str) -> str:
    """``ml`` for any ``ml.*`` type, the type itself for local ones."""
    return "ml" if instance_type.startswith("ml.") else instance_type


def load(name: str) -> type[Backend]:
    """Return a backend's class.

    Raises:
        UnsupportedError: this version does not have it, or nobody does.
    """
    if name in BACKENDS:
        module, attribute = BACKENDS[name]
        backend: type[Backend] = getattr(importlib.import_module(module), attribute)
        return backend
    if name in _MISSING:
        raise UnsupportedError(f"instance_type {name!r}: {_MISSING[name]}.")
    raise UnsupportedError(unknown("instance_type", name, (*BACKENDS, *_MISSING)))
