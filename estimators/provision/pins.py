"""The versions that fleetfit is tested with: ``constraints.txt`` of the checkout, for every Python that it runs on.

What the package declares stays a range; a checkout's environment takes exactly these, so that a release of somebody
else's breaks nothing overnight.
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

#: The oldest Python; the file has the versions for it and all later ones.
OLDEST_PYTHON = "3.10"
_HEADER = """\
# The versions that fleetfit is tested with, for Python 3.10 to 3.13. `make lock` renews them; `make newest` runs the
# landing set on the newest of everything.
"""
#: A build for one index: the others have the same release without it.
_LOCAL = re.compile(r"^([^=#]+==[^+;\s]+)\+[\w.]+")


def file(root: Path) -> Path:
    """Return the path of a checkout's constraints."""
    return root / "constraints.txt"


def options(root: Path) -> list[str]:
    """Return the options of ``uv pip install`` that keep to a checkout's constraints; none where it has none."""
    path = file(root)
    return ["--constraint", str(path), "--build-constraint", str(path)] if path.exists() else []


def digest(root: Path) -> str:
    """Return what differs whenever the constraints do."""
    path = file(root)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def without_local(line: str) -> str:
    """Return a pinned requirement without the name of a build, such as ``+cpu``, that only some indexes have."""
    return _LOCAL.sub(r"\1", line)


def renew(root: Path, requirements: Sequence[str], extras: Sequence[str]) -> Path:
    """Write the newest versions that fit together, and return the file.

    Args:
        root: The checkout.
        requirements: What its environments have beside fleetfit.
        extras: The extras of fleetfit that are covered.

    Raises:
        ProvisionError: uv cannot be had, or finds no such versions.
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
