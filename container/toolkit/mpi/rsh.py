"""``python -m container rsh HOST COMMAND…``: mpirun's remote shell (``plm_rsh_agent``).

mpirun calls it as it would call ssh. It asks this host's toolkit, which asks the toolkit of the other host over the
control connection, to start the command (``orted``) there as its child. So no sshd and no keys are needed, and the
daemon cannot outlive its host's toolkit.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from container.contract import variables
from container.system import processes


def main(argv: list[str]) -> int:
    """Ask for the command, wait for its end, and return its exit code."""
    processes.set_death_signal(signal.SIGKILL, os.getppid())
    if len(argv) < 2:
        print("usage: python -m container rsh HOST COMMAND…", file=sys.stderr)
        return 2
    toolkit = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    toolkit.connect(os.environ[variables.HOST_SOCKET])
    toolkit.send(b"rsh\n" + json.dumps({"host": argv[0], "argv": argv[1:]}).encode())
    answer = toolkit.recv(1 << 16).decode("utf-8", "replace")
    kind, _, text = answer.partition("\n")
    if kind == "exit":
        return int(text)
    print(text or f"the toolkit went away while {argv[0]} was being reached", file=sys.stderr)
    return 255
