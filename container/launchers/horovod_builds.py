"""Which frameworks an installed Horovod was built for, and which a script needs it for."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable
from pathlib import Path

from container.contract.strategies import FRAMEWORKS
from container.launchers import LaunchError


def built_for(folders: Iterable[str | Path]) -> frozenset[str]:
    """Return the frameworks that an installed Horovod was built for, by its compiled libraries; none without it.

    Args:
        folders: In which packages are installed: site-packages, or ``sys.path``.
    """
    found = set()
    for folder in folders:
        for name in FRAMEWORKS:
            with contextlib.suppress(OSError):  # a folder of PYTHONPATH that may not be read, which Python passes over
                if any(Path(folder).glob(f"horovod/{name}/mpi_lib*.so")):
                    found.add(name)
    return frozenset(found)


def needed_by(text: bytes, framework: str | None) -> frozenset[str]:
    """Return the frameworks for which a script needs Horovod.

    Only what it imports whatever happens counts: not in a function, nor where it may do without.

    Args:
        text: The script.
        framework: The framework that its estimator is for; None where that is not known.
    """
    parts = {tuple(name.split(".")[:2]) for name in _imports_of(text)}
    needed = {"torch"} if ("horovod", "torch") in parts else set()
    if not parts.isdisjoint({("horovod", "tensorflow"), ("horovod", "keras")}):
        needed.add("tensorflow")
    if not needed and framework == "torch" and ("container", "distributed") in parts:
        needed.add("torch")
    return frozenset(needed)


def refusal(program: str, needed: frozenset[str], built: frozenset[str], host: str = "") -> str | None:
    """Return why a script cannot run with the Horovod that there is, and the remedy; None if it can.

    A Horovod that is found nowhere is nothing to refuse: the job's own variables may bring one.

    Args:
        program: The script's name.
        needed: What it needs Horovod for.
        built: What Horovod is built for.
        host: The host that has that Horovod; empty for the machine of the caller.
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
    """Check a script on the host that is about to run it.

    Args:
        script: Its file; of anything but Python nothing is known.
        code: The folder of the job's code, which may bring a Horovod of its own.
        folders: In which packages are installed there.
        host: The host's name.

    Raises:
        LaunchError: it is for a framework that Horovod was not built for there.
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
