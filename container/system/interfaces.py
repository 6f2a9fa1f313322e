"""Read this machine's network interfaces and their addresses, without starting a program."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

# Source: linux/sockios.h
_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B


def addresses() -> dict[str, ipaddress.IPv4Interface]:
    """Return the first IPv4 address of each network interface, with the address's network, by the interface's name."""
    found = {name: _address(name) for _, name in socket.if_nameindex()}
    return {name: address for name, address in found.items() if address is not None}


def _address(interface: str) -> ipaddress.IPv4Interface | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        values = []
        for request in (_SIOCGIFADDR, _SIOCGIFNETMASK):
            try:
                answer = fcntl.ioctl(sock.fileno(), request, struct.pack("256s", interface.encode()[:15]))
            except OSError:
                return None
            values.append(socket.inet_ntoa(answer[20:24]))
    return ipaddress.IPv4Interface("/".join(values))
