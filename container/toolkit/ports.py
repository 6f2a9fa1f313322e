"""Ports for servers that choose none themselves, where several hosts share a machine.

A port is reserved among fleetfit's jobs of a user by a lock on a file of its name, held until the toolkit ends. Other
programs are kept away as far as can be: the range lies below the one from which Linux gives out ports by itself, and
a port that somebody listens on is not taken.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

from container.system import folders
from container.system import locks as file_locks

#: From here, up to the start of Linux's own range (net.ipv4.ip_local_port_range, normally 32768).
FIRST, LAST = 20000, 32000


class Ports:
    """Reserved ports; they are free again when this is closed, or the process ends.

    Attributes:
        numbers: The ports.
    """

    def __init__(self, numbers: tuple[int, ...], locks: list[int]) -> None:
        self.numbers = numbers
        self._locks = locks

    def close(self) -> None:
        """Give the ports back."""
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()


def reserve(count: int, folder: Path | None = None) -> Ports:
    """Reserve ``count`` ports.

    Args:
        count: How many.
        folder: Where the lock files are; default: one per user in the folder for temporary files.

    Raises:
        OSError: there are not enough free ones, or the folder cannot be used.
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
    """Return whether nobody has the port on any address: TensorFlow's servers listen on all of them."""
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
