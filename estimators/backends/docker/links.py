"""Limit the rate of links between containers.

A token bucket (``tc`` tbf) limits the rate at both ends of a container's network interface. Traffic from a container is
limited inside the container's network namespace. Traffic to the container is limited at the other end of the interface
pair, on this machine. The ``latency`` of tbf is the longest time that a packet waits in the queue before it is dropped.
``netem``, which would add latency to every packet, is not used, because many kernels lack this module.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any

from container.contract import rules
from container.contract.frozen import dataclass
from estimators.job.errors import BackendError

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(bit|kbit|mbit|gbit)(?:/s|ps)?", re.IGNORECASE)
#: The default of ``link_latency_ms``.
LATENCY_MS = 50.0
#: The bucket's size: the traffic at the full rate in this time, but at least a few packets of the largest size.
_BURST_SECONDS = 0.004
_BURST_BYTES = 128 << 10
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class ShapedLink:
    """The limits of a container's link.

    Attributes:
        rate: The rate in bits per second, in each direction.
        latency_ms: The longest time that a packet waits in the queue, in milliseconds.
    """

    rate: int
    latency_ms: float = LATENCY_MS

    def arguments(self) -> list[str]:
        """Return the arguments of ``tc qdisc`` that set these limits."""
        burst = max(_BURST_BYTES, int(self.rate / 8 * _BURST_SECONDS))
        return ["tbf", "rate", f"{self.rate}bit", "burst", str(burst), "latency", f"{self.latency_ms:g}ms"]


def rate(where: str, value: Any) -> int:
    """Return the value of the option ``link_rate`` in bits per second.

    The option is a text such as ``"100mbit"`` or ``"1gbit"``, or a number of bits per second.

    Raises:
        ConfigurationError: the value is neither such a text nor a number, or is out of range.
    """
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        bits = float(match[1]) * _UNITS[match[2].lower()]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        bits = float(value)
    else:
        raise rules.refuse(where, "a rate such as '100mbit' or '1gbit'", value)
    if not 1e5 <= bits <= 1e12:
        raise rules.refuse(where, "from 100kbit to 1000gbit", value)
    return int(bits)


def latency(where: str, value: Any) -> float:
    """Return the value of the option ``link_latency_ms`` in milliseconds.

    Raises:
        ConfigurationError: the value is not a number from 1 to 10,000.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 10_000:
        raise rules.refuse(where, "a number of milliseconds from 1 to 10000", value)
    return float(value)


def refusal() -> str | None:
    """Return why links cannot be limited on this machine. Return None if they can."""
    missing = [name for name in ("tc", "ip", "nsenter") if shutil.which(name, path=system_path()) is None]
    if missing:
        return f"{', '.join(missing)} not found. Install Debian's packages iproute2 and util-linux"
    if os.geteuid() != 0:
        return "only root may enter a container's network"
    return None


def shape(pid: int, link: ShapedLink, interface: str = "eth0") -> None:
    """Limit the link of a running container in both directions.

    Args:
        pid: The pid of a process in the container.
        link: The limits.
        interface: The name of the container's network interface.

    Raises:
        BackendError: the link cannot be limited. The message contains the output of ``tc``.
    """
    inside = ["nsenter", "--net", "--target", str(pid)]
    found = json.loads(_run([*inside, "ip", "-json", "link", "show", "dev", interface]))
    peer_index = found[0].get("link_index") if found else None
    peers = [one["ifname"] for one in json.loads(_run(["ip", "-json", "link"])) if one.get("ifindex") == peer_index]
    if not peers:
        raise BackendError("link_rate works only if the container engine runs on this machine.")
    _run([*inside, "tc", "qdisc", "replace", "dev", interface, "root", *link.arguments()])
    _run(["tc", "qdisc", "replace", "dev", peers[0], "root", *link.arguments()])


def _run(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": system_path(), "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"link_rate: {argv[0]} could not be run: {error}.") from error
    if done.returncode != 0:
        raise BackendError(f"link_rate: `{' '.join(argv)}` failed: {done.stderr.strip() or done.returncode}.")
    return done.stdout


def system_path() -> str:
    """Return the value of PATH with the folders of system tools added, because a user's PATH often lacks these
    folders.
    """
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
