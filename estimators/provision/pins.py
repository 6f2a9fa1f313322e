"""Read and renew the tested versions of all packages, for all supported Pythons.

The checkout's file ``constraints.txt`` contains exact versions, whereas fleetfit's package metadata contains only
ranges. The environment of a checkout has exactly the tested versions. Therefore a new release of a package cannot break
the environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from container.system.files import cache_root
from estimators.provision import commands, uv
from estimators.provision.errors import diagnosis

#: The oldest supported Python. The file has the versions for this and all later Pythons.
OLDEST_PYTHON = "3.10"
_HEADER = """\
# The versions that fleetfit is tested with, for Python 3.10 to 3.13. `make lock` renews them; `make newest` runs the
# landing set on the newest of everything.
"""
#: Matches a pinned version with a local label, such as ``+cpu``, which only some indexes have.
_LOCAL = re.compile(r"^([^=#]+==[^+;\s]+)\+[\w.]+")


def file(root: Path) -> Path:
    """Return the path of a checkout's constraints file."""
    return root / "constraints.txt"


def options(root: Path) -> list[str]:
    """Return the options with which ``uv pip install`` uses a checkout's constraints file.

    Return an empty list if the checkout has no such file.
    """
    path = file(root)
    return ["--constraint", str(path), "--build-constraint", str(path)] if path.exists() else []


def digest(root: Path) -> str:
    """Return a digest of the constraints file, or ``""`` if the file does not exist."""
    path = file(root)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def without_local(line: str) -> str:
    """Return a pinned requirement without the local label of its version.

    A local label, such as ``+cpu``, is removed because only some indexes have such versions.
    """
    return _LOCAL.sub(r"\1", line)


def renew(root: Path, requirements: Sequence[str], extras: Sequence[str]) -> Path:
    """Write the newest compatible versions to the checkout's constraints file, and return the path of this file.

    Args:
        root: The folder of the checkout.
        requirements: The requirements of the checkout's environments in addition to fleetfit.
        extras: The extras of fleetfit to include.

    Raises:
        ProvisionError: uv cannot be installed, or finds no compatible versions.
    """
    with tempfile.TemporaryDirectory(prefix="fleetfit-") as scratch:
        wanted, made = Path(scratch) / "requirements.in", Path(scratch) / "constraints.txt"
        wanted.write_text("".join(f"{requirement}\n" for requirement in requirements), encoding="utf-8")
        log = cache_root() / "logs" / "lock.log"
        argv = [uv.program(log), "pip", "compile", "--universal", "--python-version", OLDEST_PYTHON, "--quiet"]
        argv += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--upgrade"]
        argv += [word for extra in extras for word in ("--extra", extra)]
        finished = commands.run(
            [*argv, str(root / "setup.py"), str(wanted), "--output-file", str(made)],
            log=log,
            environment={**uv.without_misleading(os.environ), **uv.environment(log)},
        )
        if finished.returncode:
            raise diagnosis(finished.lines, log=log, what="`uv pip compile`")
        lines = made.read_text(encoding="utf-8").splitlines()
    path = file(root)
    path.write_text(_HEADER + "".join(f"{without_local(line)}\n" for line in lines), encoding="utf-8")
    return path
