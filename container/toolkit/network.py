"""The network that this host shares with the others, found by address: interfaces have other names on every engine."""

from __future__ import annotations

import ipaddress
import socket

from container.system import interfaces


def shared_network(host: str, other: str) -> tuple[str, str] | None:
    """The interface that has this host's address, and its network, if another host is in it.

    Args:
        host: This host's name, as the others resolve it.
        other: Another host's.

    Returns:
        ``("eth0", "172.18.0.0/16")``; None where the names do not resolve or the two are not in one network (a routed
        one, say): then the platform's own word holds.
    """
    try:
        mine, theirs = (ipaddress.IPv4Address(socket.gethostbyname(name)) for name in (host, other))
    except (OSError, ValueError):
        return None
    for name, found in interfaces.addresses().items():
        if found.ip == mine and not mine.is_loopback:
            return (name, str(found.network)) if theirs in found.network else None
    return None
