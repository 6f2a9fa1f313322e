"""Install uv into the cache with pip, and translate pip's settings for uv. uv creates the environments."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from container.system.files import cache_root
from estimators.provision import commands, locks
from estimators.provision.errors import VenvUnavailable, diagnosis
from estimators.provision.progress import SILENT, ProgressDisplay

VERSION = "0.13.9"
NO_INDEX = "UV_NO_INDEX"  # a variable of fleetfit; uv itself has only an option for this

# A setting of pip -> the equivalent variable of uv, and the separator between several values of this variable.
_SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": (NO_INDEX, " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "retries": ("UV_HTTP_RETRIES", " "),
}
# Variables that make pip or uv install packages outside of the environment, or that change how packages are built.
MISLEADING = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON"),
    *("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_PREFIX", "UV_WORKING_DIRECTORY", "UV_PROJECT"),
    *("PYTHONHOME", "PYTHONPATH", "MAKEFLAGS"),
)


def base_python() -> str:
    """Return the path of the running Python. In a venv, return the path of the Python from which the venv was created.

    The venv's Python is not used, because fleetfit may be about to create this venv again.
    """
    return getattr(sys, "_base_executable", None) or sys.executable


def program(log: Path, progress: ProgressDisplay = SILENT) -> str:
    """Return the path of uv. If uv is not in the cache, uv is first installed into the cache.

    Args:
        log: The path of the file for pip's output.
        progress: The display of the progress.

    Raises:
        VenvUnavailable: this Python has neither pip nor the venv module.
        ProvisionError: uv cannot be downloaded.
    """
    folder = cache_root() / "uv" / VERSION
    found = folder / "bin" / "uv"
    if found.exists():
        return str(found)
    with locks.exclusive(cache_root() / "locks" / "uv.lock") as lock:
        if found.exists():
            return str(found)
        progress.detail(f"installing uv {VERSION}")
        staged = folder.with_name(f".{VERSION}")
        shutil.rmtree(staged, ignore_errors=True)
        finished = commands.run(
            [_python_with_pip(log), "-m", "pip", "install", "--no-deps", "--target", str(staged), f"uv=={VERSION}"],
            log=log,
            environment={
                **without_misleading(os.environ),
                "PIP_USER": "0",
                "PIP_REQUIRE_VIRTUALENV": "0",
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                "PIP_RETRIES": os.environ.get("PIP_RETRIES", "2"),
            },
            inherit=[lock],
        )
        if finished.returncode:
            raise diagnosis(finished.lines, log=log, what="installing uv")
        shutil.rmtree(folder, ignore_errors=True)
        staged.rename(folder)
    return str(found)


def environment(log: Path) -> dict[str, str]:
    """Return the environment variables that make uv use pip's settings.

    Variables for uv that the user has set have priority.
    """
    listed = subprocess.run(
        [_python_with_pip(log), "-m", "pip", "config", "list"],
        env=without_misleading(os.environ),
        capture_output=True,
        text=True,
    ).stdout
    return {
        **translated(listed),
        **{name: value for name, value in without_misleading(os.environ).items() if name.startswith("UV_")},
        "UV_PYTHON_DOWNLOADS": "never",
        "NO_COLOR": "1",
    }


def translated(listed: str) -> dict[str, str]:
    """Return the environment variables for uv that correspond to the output of ``pip config list``."""
    scopes: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        scope, _, setting = name.rpartition(".")
        if scope in scopes and setting in _SETTINGS:
            scopes[scope][setting] = str(ast.literal_eval(value))
    variables = {
        # Like pip, select the best version from all indexes.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        # Without a network, uv's default of three retries takes long.
        "UV_HTTP_RETRIES": "2",
    }
    for setting, value in {**scopes["global"], **scopes["install"], **scopes[":env:"]}.items():
        variable, between = _SETTINGS[setting]
        variables[variable] = between.join(value.split())
    return variables


def without_misleading(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the given environment variables without those in :data:`MISLEADING`, such as ``PIP_TARGET``."""
    return {name: value for name, value in environ.items() if name not in MISLEADING}


def _python_with_pip(log: Path) -> str:
    """Return the path of a Python that has pip.

    This is the first of these Pythons that has pip: the running Python, the Python from which the running venv was
    created, and the Python of a venv in the cache. The venv in the cache is created if necessary.

    Raises:
        VenvUnavailable: this Python has neither pip nor the venv module.
    """
    own = cache_root() / "pip"
    for python in dict.fromkeys((sys.executable, base_python(), str(own / "bin" / "python"))):
        argv = [python, "-c", "import pip"]
        if os.path.exists(python) and subprocess.run(argv, capture_output=True).returncode == 0:
            return python
    shutil.rmtree(own, ignore_errors=True)
    made = commands.run([base_python(), "-m", "venv", str(own)], log=log, environment=os.environ)
    if made.returncode:
        version = ".".join(map(str, sys.version_info[:2]))
        raise VenvUnavailable(
            f"Python {version} has neither pip nor the venv module",
            f"Install pip or venv, for example with `sudo apt-get install python{version}-venv`, and try again.",
        )
    return str(own / "bin" / "python")
