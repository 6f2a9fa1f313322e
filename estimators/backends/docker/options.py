"""What a job may ask of its containers: ``RunOptions(backend_options=…)``, and what of this machine they see."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract.layout import DEFAULT_BASE_DIR
from estimators.backends import option_rules
from estimators.backends.docker import links
from estimators.backends.option_rules import option
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
        """Return the word that ``docker run -v`` takes."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


def _mounts(where: str, given: Any) -> tuple[Mount, ...]:
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for item in given.items() for text in item):
        raise option_rules.refuse(where, "a mapping of paths of this machine to paths of the container", given)
    for source, target in given.items():
        if not target.startswith("/"):
            raise ConfigurationError(f"{where}: {target!r} is not an absolute path of the container.")
        if (taken := _taken(target)) is not None:
            raise ConfigurationError(f"{where}: {target!r} is reserved ({taken}). Give another path.")
        if not Path(source).expanduser().is_absolute():
            raise ConfigurationError(f"{where}: {source!r} is not an absolute path of this machine.")
        if not Path(source).expanduser().exists():
            raise ConfigurationError(f"{where}: {source!r} does not exist.")
    return tuple(Mount(source=str(Path(a).expanduser().absolute()), target=b) for a, b in given.items())


def _taken(target: str) -> str | None:
    """Return what a path of a container is for that users cannot mount over; None when they can."""
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


def _bytes(where: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) == 0:
        raise option_rules.refuse(where, "a number of bytes or a size such as '4g'", value)
    return int(float(match[1]) * _UNITS[match[2].lower()])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """What ``RunOptions(backend_options=…)`` may ask for, per container.

    Attributes:
        memory: Bytes of memory; None for no limit.
        cpus: Cores; None for no limit.
        shm_size: Bytes of ``/dev/shm``, which counts as memory only as far as it is used.
        mounts: More of this machine that they see: ``{"/data/licences": "/licences"}``, read and written.
        sshd: Whether they get keys for sshd, made for the job; None: where a launcher is known to want it.
        link_rate: What their links carry (``"100mbit"``), in bits per second; None for links as they are.
        link_latency_ms: The longest that a packet waits in a link's queue, in milliseconds.
    """

    memory: int | None = option(_bytes)
    cpus: float | None = option(option_rules.above_0("a number of cores over 0"))
    shm_size: int = option(_bytes, _SHM_BYTES)
    mounts: tuple[Mount, ...] = option(_mounts, ())
    sshd: bool | None = option(option_rules.boolean)
    link_rate: int | None = option(links.rate)
    link_latency_ms: float = option(links.latency, links.LATENCY_MS)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ContainerOptions:
        """Read them.

        Raises:
            ConfigurationError: an unknown option, or a value that makes no sense.
        """
        if options.get("link_latency_ms") is not None and options.get("link_rate") is None:
            raise ConfigurationError("backend_options: 'link_latency_ms' needs 'link_rate', such as '100mbit'.")
        found: ContainerOptions = option_rules.read(cls, options)
        return found

    @property
    def link(self) -> links.Link | None:
        """Return what their links carry; None for links as they are."""
        return links.Link(rate=self.link_rate, latency_ms=self.link_latency_ms) if self.link_rate else None
