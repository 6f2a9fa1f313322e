"""Define the options of a job's containers (``RunOptions(backend_options=…)``), and mounts of this machine's files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.layout import DEFAULT_BASE_DIR
from container.contract.rules import option
from estimators.backends.docker import links
from estimators.job.errors import ConfigurationError

#: The folder in a container with the job's token and AWS credentials.
SECRETS = "/run/fleetfit"
#: The folder in a kept container with the socket of its first process.
IDLE = "/run/fleetfit-idle"

#: Docker's default of 64 MB is too small for the segments of a few MPI ranks, or for a DataLoader's queue.
_SHM_BYTES = 2 << 30
_TREE = "input(/config|/data)?|model|output|code|checkpoints|pipe_state"
#: Paths in a container that users cannot mount over, as regular expressions -> the reason.
_TAKEN = {
    "//?|/(proc|sys)(/.*)?": "for the container itself",
    f"{SECRETS}(/.*)?": "for the job's secrets",
    f"{IDLE}(/.*)?": "for kept containers",
    f"{DEFAULT_BASE_DIR}(/({_TREE}))?": "for the host's file tree",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)b?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of this machine that is mounted in a container.

    Attributes:
        source: The path on this machine.
        target: The path in the container.
        read_only: Whether the container cannot write to the mount.
    """

    source: str
    target: str
    read_only: bool = False

    @property
    def text(self) -> str:
        """Return the mount as an argument of ``docker run -v``."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


def _mounts(where: str, given: Any) -> tuple[Mount, ...]:
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for item in given.items() for text in item):
        raise rules.refuse(where, "a mapping of paths of this machine to paths of the container", given)
    mounts = []
    for source, target in given.items():
        here, there = Path(source).expanduser(), posixpath.normpath(target)
        taken = next((why for path, why in _TAKEN.items() if re.fullmatch(path, there)), None)
        if not target.startswith("/"):
            raise ConfigurationError(f"{where}: {target!r} is not an absolute path of the container.")
        if taken is not None:
            raise ConfigurationError(f"{where}: {target!r} is reserved ({taken}). Give another path.")
        if not here.is_absolute():
            raise ConfigurationError(f"{where}: {source!r} is not an absolute path of this machine.")
        if not here.exists():
            raise ConfigurationError(f"{where}: {source!r} does not exist.")
        mounts.append(Mount(source=str(here.absolute()), target=target))
    return tuple(mounts)


def _bytes(where: str, value: Any) -> int:
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, int | str) else None
    if match is None or isinstance(value, bool) or float(match[1]) == 0:
        raise rules.refuse(where, "a number of bytes or a size such as '4g'", value)
    return int(float(match[1]) * 1024 ** "bkmgt".index(match[2].lower() or "b"))


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """The ``RunOptions(backend_options=…)`` for each container of a job.

    Attributes:
        memory: The limit of memory in bytes, or None for no limit.
        cpus: The limit of cores, or None for no limit.
        shm_size: The size of ``/dev/shm`` in bytes. Only the used part counts as memory.
        mounts: Additional files and folders of this machine to mount, writable: ``{"/data/licences": "/licences"}``.
        sshd: Whether the containers get keys for sshd, which are created for the job. If None, the containers get keys
            only if the job uses a launcher that is known to need sshd.
        link_rate: The rate of a container's link in bits per second (``"100mbit"``). If None, the rate is not limited.
        link_latency_ms: The longest time that a packet waits in a link's queue, in milliseconds.
    """

    memory: int | None = option(_bytes)
    cpus: float | None = option(rules.above_0("a number of cores over 0"))
    shm_size: int = option(_bytes, _SHM_BYTES)
    mounts: tuple[Mount, ...] = option(_mounts, ())
    sshd: bool | None = option(rules.boolean)
    link_rate: int | None = option(links.rate)
    link_latency_ms: float = option(links.latency, links.LATENCY_MS)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ContainerOptions:
        """Read the options of the containers from ``backend_options``.

        Raises:
            ConfigurationError: an option is unknown, or a value is invalid.
        """
        if options.get("link_latency_ms") is not None and options.get("link_rate") is None:
            raise ConfigurationError("backend_options: 'link_latency_ms' needs 'link_rate', such as '100mbit'.")
        found: ContainerOptions = rules.read(cls, options)
        return found

    @property
    def link(self) -> links.ShapedLink | None:
        """Return the limits of the containers' links. Return None if the links are not limited."""
        return links.ShapedLink(rate=self.link_rate, latency_ms=self.link_latency_ms) if self.link_rate else None
