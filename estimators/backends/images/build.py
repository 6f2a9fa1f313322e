"""Build ``fleetfit-training``, the image with Python, TensorFlow, Horovod, Open MPI and our toolkit."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from container.system import folders
from estimators.backends.images import base as bases
from estimators.backends.images.toolkit import IMAGE, SKIPPED, package, toolkit_digest
from estimators.provision import pipe_reader, wheelhouse
from estimators.provision.packages import Installation
from estimators.provision.progress import SILENT, ProgressDisplay

if TYPE_CHECKING:
    from estimators.backends.images.engine import ImageEngine

#: Docker Hub's image with the Python version of the wheels.
_HUB_BASE = "python:{major}.{minor}-slim-bookworm"


def default_base(engine: ImageEngine) -> str:
    """Return ``fleetfit-base`` if ``fleetfit image base`` has built it, otherwise Docker Hub's slim Python image."""
    if engine.has_image(bases.BASE):
        return bases.BASE
    return _HUB_BASE.format(major=sys.version_info[0], minor=sys.version_info[1])


def build(
    engine: ImageEngine,
    *,
    name: str = IMAGE,
    base: str | None = None,
    gpu: bool = False,
    progress: ProgressDisplay = SILENT,
) -> str:
    """Build the training image with our toolkit and the wheels of the packages that are installed here.

    Args:
        engine: The container engine that builds the image.
        name: The image's name.
        base: The image to build on. The default is the result of :func:`default_base`.
        gpu: Whether the image contains TensorFlow's CUDA libraries.
        progress: The receiver of progress messages.

    Returns:
        The image's id.

    Raises:
        ProvisionError: the wheels are not available.
        EngineError: a step of the build failed.
    """
    wheels = wheelhouse.gather(Installation.of_venv(Path(sys.prefix)), gpu=gpu, progress=progress)
    with folders.temporary("image") as context:
        shutil.copyfile(package() / "Dockerfile", context / "Dockerfile")
        shutil.copytree(package(), context / "container", ignore=shutil.ignore_patterns(*SKIPPED))
        _add_reader(context)
        (context / "wheels").mkdir()
        for wheel in sorted(wheels.glob("*.whl")):
            _link(wheel, context / "wheels" / wheel.name)
        arguments = {
            "BASE_IMAGE": base or default_base(engine),
            "DEVICE": "gpu" if gpu else "cpu",
            "GPUS": "all" if gpu else "void",
            "TOOLKIT": toolkit_digest(),
        }
        return engine.build(context, name, arguments, progress=progress)


def _add_reader(context: Path) -> None:
    """Copy the compiled reader of Pipe mode into the build context, if this environment contains the compiled
    reader.
    """
    folder = context / "native"
    folder.mkdir()
    library = pipe_reader.target(Path(sys.prefix))
    if library.exists():
        shutil.copyfile(library, folder / library.name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # the files are on different file systems
        shutil.copyfile(source, target)
