"""The ``mpirun`` that an interpreter's jobs are started with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path


def mpirun(python: str, path: str | None = None) -> Path | None:
    """Find ``mpirun`` beside an interpreter, where pip puts it, or else on PATH (default: this process's)."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    found = shutil.which("mpirun", path=f"{os.path.dirname(os.path.abspath(python))}:{path}")
    return Path(found) if found else None


def mpirun_version(mpirun: Path) -> tuple[str, str] | None:
    """Return ``("Open MPI", "4.1.8")`` of an ``mpirun`` by running it (20 ms); None if it does not say."""
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
