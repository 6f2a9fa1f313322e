"""Find, by this host's address, the network that the host shares with the other hosts.

The interface's name is not used, because such names differ between container engines.
"""

from __future__ import annotations

import ipaddress
import os
import socket

from container.system import interfaces


def shared_network(host: str, other: str) -> tuple[str, str] | None:
    """Find the network that two hosts share. Return the interface with this host's address, and its network.

    Args:
        host: The name of this host, as the other hosts resolve it.
        other: The name of another host.

    Returns:
        A pair such as ``("eth0", "172.18.0.0/16")``. None if the names do not resolve, or the two hosts are not in the
        same network (in a routed network, for example). In this case, the caller uses the interface that the platform
        names.
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
    """Check that this machine can resolve its own name, because otherwise Horovod's Gloo would crash.

    Gloo uses the result of ``gethostbyname`` without checking for NULL (``gloo/rendezvous/context.cc``).

    Args:
        host: The name of the job's host on this machine, for the error message.

    Raises:
        ValueError: the machine's name has no IPv4 address. Gloo would crash each worker with SIGSEGV.
    """
    name = socket.gethostname()
    try:
        socket.gethostbyname(os.fsencode(name))  # type: ignore[arg-type] # a str would be encoded as IDNA
    except OSError as error:
        raise ValueError(
            f"the machine of {host} cannot resolve its own name, {name!r}: {error}. Horovod's Gloo crashes on such a "
            f"machine. Add the name to its /etc/hosts: `echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts`."
        ) from None
