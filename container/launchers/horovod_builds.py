"""Find the frameworks that an installed Horovod was built for, and the frameworks for which a script needs Horovod."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable
from pathlib import Path

from container.contract.strategies import FRAMEWORKS
from container.launchers import LaunchError


def built_for(folders: Iterable[str | Path]) -> frozenset[str]:
    """Return the frameworks that an installed Horovod was built for. Return an empty set if Horovod is not installed.

    The frameworks are recognised by Horovod's compiled libraries.

    Args:
        folders: The folders of installed packages, such as site-packages or the entries of ``sys.path``.
    """
    found = set()
    for folder in folders:
        for name in FRAMEWORKS:
            # a folder of PYTHONPATH that is not readable; Python also ignores such folders
            with contextlib.suppress(OSError):
                if any(Path(folder).glob(f"horovod/{name}/mpi_lib*.so")):
                    found.add(name)
    return frozenset(found)


def needed_by(text: bytes, framework: str | None) -> frozenset[str]:
    """Return the frameworks for which a script needs Horovod.

    Only imports at the top level count. Imports within a function, a ``try`` or an ``if`` statement are ignored.

    Args:
        text: The text of the script.
        framework: The framework of the job's estimator. If it is "torch", a script that imports
            :mod:`container.distributed`, but not Horovod itself, needs Horovod for PyTorch. None if unknown.
    """
    parts = {tuple(name.split(".")[:2]) for name in _imports_of(text)}
    needed = {"torch"} if ("horovod", "torch") in parts else set()
    if not parts.isdisjoint({("horovod", "tensorflow"), ("horovod", "keras")}):
        needed.add("tensorflow")
    if not needed and framework == "torch" and ("container", "distributed") in parts:
        needed.add("torch")
    return frozenset(needed)


def refusal(program: str, needed: frozenset[str], built: frozenset[str], host: str = "") -> str | None:
    """Return why a script cannot run with the installed Horovod, and the remedy. Return None if the script can run.

    If no Horovod was found, the script is not refused, because the job's variables may lead to a Horovod in a different
    folder.

    Args:
        program: The name of the script.
        needed: The frameworks for which the script needs Horovod.
        built: The frameworks that Horovod was built for.
        host: The name of the host with this Horovod. Empty for the machine of the caller.
    """
    if not built or needed <= built:
        return None
    missing, there = (" and ".join(FRAMEWORKS[name] for name in sorted(each)) for each in (needed - built, built))
    command = f"`fleetfit install horovod {' '.join(sorted(needed | built))}`"
    place = f" on {host}" if host else ""
    text = f"{program} needs Horovod for {missing}, but{place} Horovod is built for {there} only"
    if not host:
        return f"{text}: run {command} once to build Horovod for both frameworks (this takes some minutes)."
    where = "on that machine, or on your machine if fleetfit makes the environment of that machine"
    return f"{text}. Run {command} {where}. The command builds Horovod for both frameworks."


def check(script: Path, code: Path, folders: Iterable[str | Path], host: str) -> None:
    """Check on a host that a script can run with the host's Horovod.

    Args:
        script: The file of the script. Only Python scripts are checked.
        code: The folder of the job's code. If the folder contains a Horovod, the script is not checked.
        folders: The host's folders of installed packages.
        host: The host's name.

    Raises:
        LaunchError: the script needs Horovod for a framework that the host's Horovod was not built for.
    """
    if script.suffix != ".py" or not script.is_file() or (code / "horovod").exists():
        return
    text = script.read_bytes()
    problem = None
    if b"horovod" in text:
        problem = refusal(script.name, needed_by(text, None), built_for(folders), host)
    if problem is not None:
        raise LaunchError(problem)


def _imports_of(text: bytes) -> set[str]:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found
