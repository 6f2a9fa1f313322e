"""uv, which makes environments and installs into them. It comes from the package index, by way of pip."""

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
from estimators.provision.progress import SILENT, Progress

VERSION = "0.13.9"
NO_INDEX = "UV_NO_INDEX"  # ours: uv has an option for it, and no variable

# pip's settings and uv's variables for the same, with what stands between several values.
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
# Settings that send packages elsewhere than into the environment they are meant for.
MISLEADING = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON"),
    *("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_PREFIX", "UV_WORKING_DIRECTORY", "UV_PROJECT"),
    *("PYTHONHOME", "PYTHONPATH", "MAKEFLAGS"),
)


def base_python() -> str:
    """Return the running Python; in a venv the one that it was made with, since the venv may be about to be remade."""
    return getattr(sys, "_base_executable", None) or sys.executable


def program(log: Path, progress: Progress = SILENT) -> str:
    """Return uv's path; it is installed into the cache the first time.

    Args:
        log: The file for pip's output.
        progress: Told what is being done.

    Raises:
        VenvUnavailable: This Python has neither pip nor what would make one.
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
    """Return the variables that uv needs to go by pip's settings; the user's own for uv come before them."""
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
    """Return uv's variables for what ``pip config list`` prints."""
    scopes: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        scope, _, setting = name.rpartition(".")
        if scope in scopes and setting in _SETTINGS:
            scopes[scope][setting] = str(ast.literal_eval(value))
    variables = {
        # pip takes the best version of all indexes.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        # uv's own three take long where there is no network.
        "UV_HTTP_RETRIES": "2",
    }
    for setting, value in {**scopes["global"], **scopes["install"], **scopes[":env:"]}.items():
        variable, between = _SETTINGS[setting]
        variables[variable] = between.join(value.split())
    return variables


def without_misleading(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables less those that would have packages installed somewhere else."""
    return {name: value for name, value in environ.items() if name not in MISLEADING}


def _python_with_pip(log: Path) -> str:
    """Return a Python that has pip: this one, its base, or a venv in the cache that is made for it."""
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
