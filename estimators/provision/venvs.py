"""Create virtual environments. A folder that fleetfit has not created is never overwritten."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from estimators.provision import commands, uv
from estimators.provision.errors import PythonUnsupported, VenvUnavailable, diagnosis

# The Pythons for which TensorFlow 2.21 has wheels.
OLDEST_PYTHON = (3, 10)
NEWEST_PYTHON = (3, 13)


def identity(prefix: Path) -> str:
    """Return a text that identifies a venv and the interpreter that its ``python`` links to.

    The text changes if the venv is moved, or if a system upgrade makes ``python`` link to a different interpreter.
    """
    return f"{os.path.realpath(prefix)}|{os.path.realpath(prefix / 'bin' / 'python')}"


def is_usable(prefix: Path) -> bool:
    """Return whether a folder is an environment with an interpreter. A link to a removed Python is no interpreter."""
    return (prefix / "bin" / "python").exists() and is_environment(prefix)


def is_environment(prefix: Path) -> bool:
    """Return whether a folder is a virtual or conda environment. The folder of a system's Python is neither."""
    return (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()


def check_python() -> None:
    """Check that TensorFlow has wheels for the running Python.

    Raises:
        PythonUnsupported: TensorFlow has no wheels for the running Python. If a suitable Python is in PATH, the message
            names that Python.
    """
    running = sys.version_info[:2]
    if OLDEST_PYTHON <= running <= NEWEST_PYTHON:
        return
    side = "old" if running < OLDEST_PYTHON else "new"
    span = f"{_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_PYTHON)}"
    others = (f"python3.{minor}" for minor in range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1))
    found = next((name for name in others if shutil.which(name)), None)
    remedy = f"Use the installed {found}: `make train PYTHON={found}`." if found else f"Install Python {span}."
    raise PythonUnsupported(
        f"Python {_dotted(running)} is too {side}: TensorFlow 2.21 has wheels for {span}",
        remedy,
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def check_ownership(prefix: Path, *, ours: bool) -> bool:
    """Return whether a folder is a usable venv that the user has created. fleetfit does not replace such a venv.

    Args:
        prefix: The folder.
        ours: Whether an earlier run of fleetfit created the folder.

    Returns:
        True if the folder is a usable venv of the user. False if the folder does not exist, is empty, or was created by
        fleetfit.

    Raises:
        VenvUnavailable: the folder contains other files.
    """
    if ours or not prefix.exists() or (prefix.is_dir() and not any(prefix.iterdir())):
        return False
    if is_usable(prefix):
        return True
    raise VenvUnavailable(
        f"{prefix} exists, but is not a usable virtual environment",
        "Remove or rename it, or choose another folder with --venv.",
    )


def make(prefix: Path, *, keep: str, log: Path) -> None:
    """Create a venv for the running Python in a folder. An incomplete or old venv of fleetfit is replaced.

    Args:
        prefix: The venv's folder.
        keep: The name of the entry that stays in the folder. If this process is interrupted, the entry shows the next
            run that fleetfit has created the folder.
        log: The path of the file for the output.

    Raises:
        ProvisionError: the venv cannot be created.
    """
    # Prepare the command before files are removed, because this process may run with the venv's own Python.
    argv = [uv.program(log), "venv", "--no-project", "--allow-existing", "--python", uv.base_python(), str(prefix)]
    environment = {**uv.without_misleading(os.environ), **uv.environment(log)}
    for entry in prefix.iterdir():
        if entry.name == keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    finished = commands.run(argv, log=log, environment=environment)
    if finished.returncode:
        raise diagnosis(finished.lines, log=log, what="making the virtual environment")
