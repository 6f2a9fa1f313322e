"""What runs on a machine of the fleet from its start, as sshd would: for each connection, the agent of a host.

    python machine.py ADDRESS PORT HIDDEN PYTHON PACKAGE [SSHD WORD…]

It is started in a network and a mount namespace of its own; the token comes in by standard input. sshd itself runs
there too, if its command line is given.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

from hiding import hide


def main() -> None:
    address, port, hidden, python, package, *sshd = sys.argv[1:]
    token = sys.stdin.buffer.readline()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with the tests
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    hide({hidden, "/tmp", "/dev/shm"})
    name = f"machine-{address.rpartition('.')[2]}"
    socket.sethostname(name)
    with open("/tmp/.hosts", "w") as file:  # as machines do, it knows its own name
        file.write(f"127.0.0.1 localhost\n{address} {name}\n")
    subprocess.run(["mount", "--bind", "/tmp/.hosts", "/etc/hosts"], check=True)
    server = socket.create_server((address, int(port)))
    if sshd:
        with_us = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # noqa: E731
        subprocess.Popen(sshd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=with_us)
        while True:
            try:
                socket.create_connection((address, 22)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    environment = {
        "PATH": f"{os.path.dirname(python)}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        **{name: value for name, value in os.environ.items() if name.startswith(("COVERAGE_", "TF_CPP"))},
    }
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        if os.fork() == 0:
            try:
                serve(connection, token, [python, "-I", f"{package}/__main__.py", "agent", "host"], environment)
            finally:
                os._exit(1)
        connection.close()


def serve(connection: socket.socket, token: bytes, argv: list[str], environment: dict[str, str]) -> None:
    said = b""
    connection.settimeout(10)
    while not said.endswith(b"\n") and len(said) <= len(token):
        said += connection.recv(1)
    if said != token:
        return
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir("/tmp")
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    os.execve(argv[0], argv, environment)


main()
