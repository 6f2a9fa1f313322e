"""Sends bytes from one process to another for a while, for ``benchmarks/links.py``: ADDRESS PORT SECONDS SENDS.

With SENDS 0 it listens, says so by an empty line, and prints the bytes per second that came; with 1 it sends.
"""

from __future__ import annotations

import socket
import sys
import time

#: Few enough that a slow link has soon carried what waits in it.
BUFFER = 256 << 10
#: Of the other's silence, in seconds.
TIMEOUT = 10.0


def send(address: tuple[str, int], seconds: float) -> None:
    """Send until the time is over."""
    with socket.socket() as connection:
        connection.settimeout(TIMEOUT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        connection.connect(address)
        block = bytes(64 << 10)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(block)


def receive(address: tuple[str, int]) -> float:
    """Receive until the other closes; returns the bytes per second from the first on."""
    with socket.create_server(address) as server:
        server.settimeout(TIMEOUT)
        print(flush=True)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(TIMEOUT)
            buffer = bytearray(1 << 20)
            received = connection.recv_into(buffer)
            began = time.monotonic()
            while count := connection.recv_into(buffer):
                received += count
            return received / (time.monotonic() - began)


if __name__ == "__main__":
    host, port, duration, sends = sys.argv[1:]
    if int(sends):
        send((host, int(port)), float(duration))
    else:
        print(receive((host, int(port))))
