"""The relay: what connects to one address reaches a server at another, whole and in both directions."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import container

PROGRAM = Path(next(iter(container.__path__))) / "__main__.py"


def test_what_connects_reaches_the_server(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    dead = socket.create_server(("127.0.0.1", 0))
    gone = dead.getsockname()[1]
    dead.close()
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    targets = [server.getsockname()[1], gone]
    words = [
        word
        for sock, port in zip(listening, targets, strict=True)
        for word in ("--fd", str(sock.fileno()), "--to", f"127.0.0.1:{port}")
    ]
    process = subprocess.Popen(
        [sys.executable, "-I", str(PROGRAM), "agent", "relay", *words],
        stdin=subprocess.PIPE,
        pass_fds=[sock.fileno() for sock in listening],
    )

    def echo() -> None:  # until the client has said all, then all of it at once
        connection, _ = server.accept()
        with connection:
            said = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            connection.sendall(said[::-1])

    thread = threading.Thread(target=echo)
    thread.start()
    try:
        data = os.urandom(3_000_000)
        with socket.create_connection(listening[0].getsockname(), timeout=60) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda: client.recv(1 << 16), b"")) == data[::-1]
        with socket.create_connection(listening[1].getsockname(), timeout=60) as client:
            assert client.recv(1) == b""  # there is no server, and nobody waits for one
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
        thread.join()
        for sock in (server, *listening):
            sock.close()
