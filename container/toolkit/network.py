"""Find the network that this host shares with the others by its address, because interface names differ by engine."""

from __future__ import annotations

import ipaddress
import os
import socket

from container.system import interfaces


def shared_network(host: str, other: str) -> tuple[str, str] | None:
    """Return the interface that has this host's address, and its network, if another host is in the same network.

    Args:
        host: This host's name, as the others resolve it.
        other: Another host's name.

    Returns:
        ``("eth0", "172.18.0.0/16")``; None if the names do not resolve, or the two are not in one network (in a routed
        network, for example). The interface that the platform names is then used.
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
    """Validate that this machine resolves its own name; otherwise Horovod's Gloo would crash.

    Gloo uses the result of ``gethostbyname`` without checking for NULL (``gloo/rendezvous/context.cc``).

    Args:
        host: The host that runs on this machine.

    Raises:
        ValueError: the name has no IPv4 address; each worker would be killed by SIGSEGV.
    """
    name = socket.gethostname()
    try:
        socket.gethostbyname(os.fsencode(name))  # type: ignore[arg-type] # a str would be encoded as IDNA
    except OSError as error:
        raise ValueError(
            f"the machine of {host} cannot resolve its own name, {name!r}: {error}. Horovod's Gloo crashes on such a "
            f"machine. Add the name to its /etc/hosts: `echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts`."
        ) from None
