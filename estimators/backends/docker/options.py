"""What a job may ask of its containers: ``RunOptions(backend_options=…)``, and what of this machine they see."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract.layout import DEFAULT_BASE_DIR
from container.contract.names import unknown
from estimators.backends.docker import links
from estimators.job.errors import ConfigurationError

#: A folder of files that only this job's containers have: the job's token and AWS credentials.
SECRETS = "/run/fleetfit"
#: The folder in which the first process of a kept container listens.
IDLE = "/run/fleetfit-idle"

#: Docker's own 64 MB hold neither the segments of a few MPI ranks nor a DataLoader's queue.
_SHM_BYTES = 2 << 30
#: Folders of the tree that are mounted as wholes.
_TREE = ("input", "input/config", "input/data", "model", "output", "code", "checkpoints", "pipe_state")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)b?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of this machine in a container."""

    source: str
    target: str
    read_only: bool = False

    @property
    def text(self) -> str:
        """As ``docker run -v`` takes it."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """What ``RunOptions(backend_options=…)`` may ask for, per container.

    Attributes:
        memory: Bytes of memory; None for no limit.
        cpus: Cores; None for no limit.
        shm_size: Bytes of ``/dev/shm``, which counts as memory only as far as it is used.
        mounts: More of this machine that they see: ``{"/data/licences": "/licences"}``, read and written.
        link: What their links carry, by ``link_rate`` (``"100mbit"``) and ``link_latency_ms``; None for links as they
            are.
        sshd: Whether they get keys for sshd, made for the job; None: where a launcher is known to want it.
    """

    memory: int | None = None
    cpus: float | None = None
    shm_size: int = _SHM_BYTES
    mounts: tuple[Mount, ...] = ()
    sshd: bool | None = None
    link: links.Link | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ContainerOptions:
        """Read them.

        Raises:
            ConfigurationError: an unknown option, or a value that makes no sense.
        """
        known = [field.name for field in dataclasses.fields(cls) if field.name != "link"]
        known += ["link_rate", "link_latency_ms"]
        for name in options:
            if name not in known:
                raise ConfigurationError(unknown("backend option", name, known))
        values: dict[str, Any] = {}
        for name in ("memory", "shm_size"):
            if options.get(name) is not None:
                values[name] = _bytes(name, options[name])
        cpus = options.get("cpus")
        if cpus is not None:
            if isinstance(cpus, bool) or not isinstance(cpus, int | float) or not cpus > 0:
                raise ConfigurationError(f"backend option 'cpus' must be a number of cores over 0, got {cpus!r}.")
            values["cpus"] = float(cpus)
        if options.get("mounts") is not None:
            values["mounts"] = _mounts(options["mounts"])
        if options.get("sshd") is not None:
            if not isinstance(options["sshd"], bool):
                raise ConfigurationError(f"backend option 'sshd' must be True or False, got {options['sshd']!r}.")
            values["sshd"] = options["sshd"]
        values["link"] = links.parse(options.get("link_rate"), options.get("link_latency_ms"))
        return cls(**values)


def _mounts(given: Any) -> tuple[Mount, ...]:
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for item in given.items() for text in item):
        raise ConfigurationError(
            f"backend option 'mounts' must map paths of this machine to paths of the container, got {given!r}."
        )
    for source, target in given.items():
        if not target.startswith("/"):
            raise ConfigurationError(f"backend option 'mounts': {target!r} is not an absolute path of the container.")
        if (taken := _taken(target)) is not None:
            raise ConfigurationError(f"backend option 'mounts': {target!r} is reserved ({taken}); give another path.")
        if not Path(source).expanduser().is_absolute():
            raise ConfigurationError(f"backend option 'mounts': {source!r} is not an absolute path of this machine.")
        if not Path(source).expanduser().exists():
            raise ConfigurationError(f"backend option 'mounts': {source!r} does not exist.")
    return tuple(Mount(source=str(Path(a).expanduser().absolute()), target=b) for a, b in given.items())


def _taken(target: str) -> str | None:
    """What a path of a container is for that users cannot mount over; None when they can."""
    path = posixpath.normpath(target)
    if path == "/" or path.split("/")[1] in ("proc", "sys"):
        return "for the container itself"
    if path == SECRETS or path.startswith(f"{SECRETS}/"):
        return "for the job's secrets"
    if path == IDLE or path.startswith(f"{IDLE}/"):
        return "for kept containers"
    if path in (DEFAULT_BASE_DIR, *(f"{DEFAULT_BASE_DIR}/{name}" for name in _TREE)):
        return "for the host's file tree"
    return None


def _bytes(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) == 0:
        raise ConfigurationError(
            f"backend option {name!r} must be a number of bytes or a size such as '4g', got {value!r}."
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])
