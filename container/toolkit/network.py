"""The network that this host shares with the others, found by address: interfaces have other names on every engine."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

# Source: linux/sockios.h
_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B


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
    for _, name in socket.if_nameindex():
        found = _address(name)
        if found is not None and found.ip == mine and not mine.is_loopback:
            return (name, str(found.network)) if theirs in found.network else None
    return None


def _address(interface: str) -> ipaddress.IPv4Interface | None:
    """An interface's address and mask; None for one without."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        values = []
        for request in (_SIOCGIFADDR, _SIOCGIFNETMASK):
            try:
                answer = fcntl.ioctl(sock.fileno(), request, struct.pack("256s", interface.encode()[:15]))
            except OSError:
                return None
            values.append(socket.inet_ntoa(answer[20:24]))
    return ipaddress.IPv4Interface("/".join(values))
