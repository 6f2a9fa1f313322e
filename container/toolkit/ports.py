"""Reserve ports for servers that cannot choose a free port themselves, if several hosts share a machine.

A reservation is respected only by the fleetfit jobs of the same user. The toolkit locks a file that is named after the
port, and holds the lock until the toolkit ends. To avoid conflicts with other programs, the range of ports is below the
range from which Linux assigns ports. A port on which a program listens is skipped.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

from container.system import folders
from container.system import locks as file_locks

#: The range of ports, which is below the range from which Linux assigns ports (net.ipv4.ip_local_port_range, normally
#: from 32768).
FIRST, LAST = 20000, 32000


class Ports:
    """Reserved ports. The ports are released by :meth:`close`, or at the end of the process.

    Attributes:
        numbers: The numbers of the ports.
    """

    def __init__(self, numbers: tuple[int, ...], locks: list[int]) -> None:
        self.numbers = numbers
        self._locks = locks

    def close(self) -> None:
        """Release the ports."""
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()


def reserve(count: int, folder: Path | None = None) -> Ports:
    """Reserve ports.

    Args:
        count: The number of ports to reserve.
        folder: The folder of the lock files. If None, this user's folder for locks within the folder for temporary
            files.

    Raises:
        OSError: there are not enough free ports, or the folder cannot be used.
    """
    folder = folder or folders.of_ports()
    folder.mkdir(mode=0o700, exist_ok=True)
    numbers: list[int] = []
    locks: list[int] = []
    candidates = list(range(FIRST, LAST))
    random.shuffle(candidates)
    for number in candidates:
        if len(numbers) == count:
            break
        lock = file_locks.take(folder / str(number))
        if lock is None:
            continue
        if _is_free(number):
            numbers.append(number)
            locks.append(lock)
        else:
            os.close(lock)
    reserved = Ports(tuple(numbers), locks)
    if len(numbers) < count:
        reserved.close()
        raise OSError(f"{count} free ports between {FIRST} and {LAST} are needed, but only {len(numbers)} were found.")
    return reserved


def _is_free(number: int) -> bool:
    """Return whether a port is free on all addresses of this machine.

    All addresses are checked because TensorFlow's servers listen on all addresses.
    """
    with contextlib.closing(socket.socket(socket.AF_INET6)) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::", number))
        except OSError:
            return _is_free_ipv4(number)
    return True


def _is_free_ipv4(number: int) -> bool:
    with contextlib.closing(socket.socket(socket.AF_INET)) as sock:
        try:
            sock.bind(("", number))
        except OSError:
            return False
    return True
