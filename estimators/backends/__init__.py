"""Where a cluster runs: backends, looked up by the instance type and imported on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from container.contract.names import unknown
from estimators.job.errors import UnsupportedError

if TYPE_CHECKING:
    from estimators.backends.base import Backend

#: Backend name -> module and class.
BACKENDS = {
    "local_process": ("estimators.backends.process", "ProcessBackend"),
    "local": ("estimators.backends.docker.backend", "DockerBackend"),
    "local_gpu": ("estimators.backends.docker.backend", "DockerBackend"),
    "local_fake": ("estimators.backends.fake", "FakeBackend"),
    "ml": ("estimators.backends.sagemaker.backend", "SageMakerBackend"),
}


def backend_name(instance_type: str) -> str:
    """``ml`` for any ``ml.*`` type, the type itself for local ones."""
    return "ml" if instance_type.startswith("ml.") else instance_type


def load(name: str) -> type[Backend]:
    """Return a backend's class.

    Raises:
        UnsupportedError: there is none of that name.
    """
    if name in BACKENDS:
        module, attribute = BACKENDS[name]
        backend: type[Backend] = getattr(importlib.import_module(module), attribute)
        return backend
    raise UnsupportedError(unknown("instance_type", name, BACKENDS))
