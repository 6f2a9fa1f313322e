"""Collect the slow parts of a job's provenance during the training, such as digests of the data.

``provenance.json`` has several parts, the shares. Quick shares are collected first, and each share is written as soon
as it is complete. Therefore complete shares are kept even if the job ends early or the machine fails.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract import hyperparameters as codec
from container.system import locations, machine, openmpi
from container.system.files import read_json, write_json
from estimators.records.provenance import FILE, changes, digests, packages, read
from estimators.records.provenance.caller import SHARES, seeds

_SCRIPT_LIMIT = 16 << 20


def collect(folder: Path) -> dict[str, Any]:
    """Add the missing shares to a job's ``provenance.json``.

    If no share is missing, do nothing. Call this function in a child process
    (:func:`estimators.records.provenance.command`) or a thread, because it takes a second or more. The function reads
    ``request.json`` and ``options.json``, and writes only ``provenance.json``.

    Args:
        folder: The folder of the job's record.

    Returns:
        The whole provenance. A share that could not be collected is null. ``errors`` then contains the reason.

    Raises:
        OSError: ``provenance.json`` cannot be written.
    """
    facts = {"format": 1, "time": time.time(), "errors": {}, **read(folder)}
    if facts.get("complete"):
        return facts
    request = read_json(folder / "request.json")
    options = read_json(folder / "options.json")
    python = str(options.get("python") or facts.get("python", {}).get("executable") or sys.executable)
    facts["seeds"] = {**facts.get("seeds", {}), **_seeds(request)}
    known = facts.get("git")
    _digest_script(facts.get("caller"))
    pending = [share for share in SHARES if share in facts.get("pending", SHARES)]
    for share in list(pending):
        try:
            facts[share] = _share(share, request, python, known)
        # Unusual file systems and broken installations can raise many kinds of errors here. An error in one share must
        # not prevent the collection of the other shares.
        except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError, changes.GitError) as error:
            facts[share] = known if share == "git" else None
            facts["errors"][share] = f"{type(error).__name__}: {error}"
        pending.remove(share)
        facts["pending"] = pending
        facts["complete"] = not pending
        write_json(folder / FILE, facts)
    return facts


def _share(name: str, request: Mapping[str, Any], python: str, known: Mapping[str, Any] | None) -> Any:
    match name:
        case "git":
            return changes.inspect(known) if known else None
        case "software":
            return _software(python)
        case "machine":
            return _machine()
        case "packages":
            return packages.listing(python)
    return _data(request)


def _seeds(request: Mapping[str, Any]) -> dict[str, Any]:
    decoded = codec.decode(request.get("HyperParameters") or {})
    user = {name: value for name, value in decoded.items() if not codec.is_reserved(name)}
    return seeds(user, {**os.environ, **(request.get("Environment") or {})})


def _digest_script(caller: Any) -> None:
    """Add the digest of the Python file that called ``fit()`` to the facts about the caller.

    If the file has changed since the job's start, or is too large, the digest is None.
    """
    script = caller.get("script") if isinstance(caller, dict) else None
    if not isinstance(script, dict) or "blake2b" in script:
        return
    try:
        path = Path(script["path"])
        same = path.stat().st_mtime_ns == script["mtime_ns"] and script["bytes"] <= _SCRIPT_LIMIT
        script["blake2b"] = digests.content_digest(path) if same else None
    except OSError:
        script["blake2b"] = None


def _software(python: str) -> dict[str, str]:
    found = packages.versions(folders=packages.folders_of(python))
    mpirun = openmpi.find_mpirun(python)
    if mpirun is not None:
        found["mpirun"] = f"{' '.join(openmpi.mpirun_version(mpirun) or ('unknown',))} ({mpirun})"
    return found


def _machine() -> dict[str, Any]:
    facts = machine.facts()
    return {
        "platform": platform.platform(),
        "kernel": os.uname().release,
        "cpu": machine.cpu_model(),
        "cores": facts.cores,
        "memory_bytes": facts.memory_bytes,
        "gpus": list(facts.gpus),
    }


def _data(request: Mapping[str, Any]) -> dict[str, Any]:
    digester = digests.Digester()
    facts: dict[str, Any] = {}
    for channel in request.get("InputDataConfig") or []:
        try:
            path = locations.local_path(channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", ""))
        except locations.LocationError:
            continue  # in S3
        try:
            facts[channel["ChannelName"]] = digester.digest(path)
        except OSError as error:
            facts[channel["ChannelName"]] = {"path": str(path), "error": str(error)}
    return facts
