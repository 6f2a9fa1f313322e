"""The shares of ``provenance.json`` that take time, gathered beside the training.

Each share is written as soon as it is there, the quick ones first, so that a job that ends early, or a machine that
dies, leaves what was known by then.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from container.contract import hyperparameters as codec
from container.system import machine
from estimators.records.provenance import changes, digests, packages, software
from estimators.records.provenance.caller import SHARES, seeds
from estimators.records.provenance.files import write_json

_PROVENANCE = "provenance.json"
_SCRIPT_LIMIT = 16 << 20


class _HasPath(Protocol):
    """A job's record: all that is needed of it is its folder."""

    @property
    def path(self) -> Path: ...


def read(record: _HasPath | str | os.PathLike[str]) -> dict[str, Any]:
    """A job's provenance, as far as it is known; empty if nothing is."""
    return _read(_folder(record) / _PROVENANCE)


def collect(record: _HasPath | str | os.PathLike[str]) -> dict[str, Any]:
    """Add to a job's ``provenance.json`` what the caller's share leaves open; a second call does nothing.

    Takes a second or more: it is meant for a child process (:func:`estimators.records.provenance.command`) or a
    thread. It reads ``request.json`` and ``options.json`` and replaces ``provenance.json``, nothing else.

    Args:
        record: The job's record or its folder.

    Returns:
        The whole provenance. A share that could not be had is null, and ``errors`` says why.

    Raises:
        OSError: ``provenance.json`` cannot be written.
    """
    folder = _folder(record)
    path = folder / _PROVENANCE
    facts = {"format": 1, "time": time.time(), "errors": {}, **_read(path)}
    if facts.get("complete"):
        return facts
    request = _read(folder / "request.json")
    options = _read(folder / "options.json")
    python = str(options.get("python") or facts.get("python", {}).get("executable") or sys.executable)
    facts["seeds"] = {**facts.get("seeds", {}), **_seeds(request)}
    known = facts.get("git")
    gather: dict[str, Callable[[], Any]] = {
        "git": lambda: changes.inspect(known) if known else None,
        "software": lambda: _software(python),
        "machine": _machine,
        "packages": lambda: packages.listing(python=python),
        "data": lambda: _data(request),
    }
    _digest_script(facts.get("caller"))
    pending = [share for share in SHARES if share in facts.get("pending", SHARES)]
    for share in list(pending):
        try:
            facts[share] = gather[share]()
        # What a foreign file system or a broken installation can raise here has no end, and provenance must never
        # be the reason why the shares after this one are missing.
        except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError, changes.GitError) as error:
            facts[share] = known if share == "git" else None
            facts["errors"][share] = f"{type(error).__name__}: {error}"
        pending.remove(share)
        facts["pending"] = pending
        facts["complete"] = not pending
        write_json(path, facts, make_folder=False)
    return facts


def _folder(record: _HasPath | str | os.PathLike[str]) -> Path:
    return Path(record) if isinstance(record, str | os.PathLike) else record.path


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _seeds(request: Mapping[str, Any]) -> dict[str, Any]:
    decoded = codec.decode(request.get("HyperParameters") or {})
    user = {name: value for name, value in decoded.items() if not codec.is_reserved(name)}
    return seeds(user, {**os.environ, **(request.get("Environment") or {})})


def _digest_script(caller: Any) -> None:
    """Add the digest of the caller's script, unless it has been changed since."""
    script = caller.get("script") if isinstance(caller, dict) else None
    if not isinstance(script, dict) or "blake2b" in script:
        return
    try:
        path = Path(script["path"])
        same = path.stat().st_mtime_ns == script["mtime_ns"] and script["bytes"] <= _SCRIPT_LIMIT
        script["blake2b"] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if same else None
    except OSError:
        script["blake2b"] = None


def _software(python: str) -> dict[str, str]:
    found = software.versions(packages.Interpreter.of(python).folders)
    mpirun = software.find_program("mpirun", python=python)
    if mpirun is not None:
        said = software.mpirun_version(mpirun)
        found["mpirun"] = f"{' '.join(said) if said else 'unknown'} ({mpirun})"
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
        path = local_path(channel)
        if path is not None:
            try:
                facts[channel["ChannelName"]] = digester.digest(path)
            except OSError as error:
                facts[channel["ChannelName"]] = {"path": str(path), "error": str(error)}
    return facts


def local_path(channel: Mapping[str, Any]) -> Path | None:
    """The local folder or file of a channel of a CreateTrainingJob request; None for one in S3."""
    uri = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri")
    if not isinstance(uri, str) or not uri:
        return None
    if uri.startswith("file://"):
        return Path(unquote(urlsplit(uri).path))
    return Path(uri) if "://" not in uri else None
