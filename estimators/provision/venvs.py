"""Makes virtual environments, and never takes a folder that is somebody else's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from estimators.provision import commands, uv
from estimators.provision.errors import PythonUnsupported, VenvUnavailable, diagnosis

# What TensorFlow 2.21 has wheels for.
OLDEST_PYTHON = (3, 10)
NEWEST_PYTHON = (3, 13)


def identity(prefix: Path) -> str:
    """Changes when the venv was moved, or when its ``python`` became another one through an upgrade of the system."""
    return f"{os.path.realpath(prefix)}|{os.path.realpath(prefix / 'bin' / 'python')}"


def is_usable(prefix: Path) -> bool:
    """Return whether the venv has an interpreter to run; a link to a Python that was removed is none."""
    return (prefix / "bin" / "python").exists() and is_environment(prefix)


def is_environment(prefix: Path) -> bool:
    """Return whether a Python's folder is an environment of the user's, a venv or conda's, and not the system's."""
    return (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()


def check_python() -> None:
    """Refuse a Python that TensorFlow has no wheel for.

    Raises:
        PythonUnsupported: Naming one that fits, if PATH has one.
    """
    running = sys.version_info[:2]
    if OLDEST_PYTHON <= running <= NEWEST_PYTHON:
        return
    side = "old" if running < OLDEST_PYTHON else "new"
    span = f"{_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_PYTHON)}"
    others = (f"python3.{minor}" for minor in range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1))
    found = next((name for name in others if shutil.which(name)), None)
    remedy = f"Use the one that is here: `make train PYTHON={found}`." if found else f"Install Python {span}."
    raise PythonUnsupported(
        f"Python {_dotted(running)} is too {side}: TensorFlow 2.21 has wheels for {span}",
        remedy,
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def check_ownership(prefix: Path, *, ours: bool) -> bool:
    """Return whether the folder is a venv that the user made, to be used as it is.

    Args:
        prefix: The folder.
        ours: Whether an earlier run of ours made it, so that it may be made anew.

    Returns:
        True if a usable venv is there already; False if the place is free, or ours.

    Raises:
        VenvUnavailable: If something else is there.
    """
    if ours or not prefix.exists() or (prefix.is_dir() and not any(prefix.iterdir())):
        return False
    if is_usable(prefix):
        return True
    raise VenvUnavailable(
        f"{prefix} exists, but is not a working virtual environment",
        "Remove or rename it, or choose another folder with --venv.",
    )


def make(prefix: Path, *, keep: str, log: Path) -> None:
    """Make a venv for the running Python, in place of an unfinished or outdated one of ours.

    Args:
        prefix: Its folder.
        keep: Name of the entry in it that stays: it marks the folder as ours, also if this is interrupted.
        log: File for the output.

    Raises:
        ProvisionError: If it fails.
    """
    # First, since the running Python may be the venv's own.
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
