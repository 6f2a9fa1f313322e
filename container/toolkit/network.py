"""The network that this host shares with the others, found by address: interfaces have other names on every engine."""

from __future__ import annotations

import ipaddress
import os
import socket

from container.system import interfaces


def shared_network(host: str, other: str) -> tuple[str, str] | None:
    """Return the interface that has this host's address, and its network, if another host is in it.

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


def check_own_name(host: str) -> None:
    """Check that this machine resolves its own name, without which Horovod's Gloo crashes.

    Gloo uses what ``gethostbyname`` returns without looking whether it is NULL (``gloo/rendezvous/context.cc``).

    Args:
        host: The host that runs on this machine.

    Raises:
        ValueError: the name has no IPv4 address; each worker would be killed by SIGSEGV.
    """
    name = socket.gethostname()
    try:
        socket.gethostbyname(os.fsencode(name))  # type: ignore[arg-type] # a text would be encoded as IDNA
    except OSError as error:
        raise ValueError(
            f"the machine of {host} cannot resolve its own name, {name!r}: {error}. Horovod's Gloo crashes on such a "
            f"machine. Add the name to its /etc/hosts: `echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts`."
        ) from None
