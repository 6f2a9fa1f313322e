"""Run mpirun's remote shell (``plm_rsh_agent``): ``python -m container rsh HOST COMMAND…``.

mpirun calls this program as it would call ssh. The program sends a request to the toolkit of its own host, algo-1.
algo-1's toolkit forwards the request over the control connection to the other host's toolkit, which starts the command
(``orted``) as its child. Therefore no sshd and no keys are needed, and the daemon cannot outlive its host's toolkit.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from container.contract import variables
from container.contract.messages import MessageError
from container.system import processes
from container.system.connection import BlockingConnection


def main(argv: list[str]) -> int:
    """Ask the toolkit to run the command on the host, and wait until the command ends.

    Returns:
        The exit code of the command, 2 if the command line is invalid, or 255 if the command cannot be started.
    """
    processes.set_death_signal(signal.SIGKILL, os.getppid())
    if len(argv) < 2:
        print("usage: python -m container rsh HOST COMMAND…", file=sys.stderr)
        return 2
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ[variables.HOST_SOCKET])
    with BlockingConnection(sock) as toolkit:
        try:
            toolkit.send({"op": "rsh", "host": argv[0], "argv": argv[1:]})
            answer = toolkit.receive()
        except (OSError, MessageError) as error:
            print(f"the toolkit could not be asked to reach {argv[0]}: {error}", file=sys.stderr)
            return 255
    if answer is not None and not answer.get("error"):
        return int(answer["code"])
    said = answer["error"] if answer is not None else f"the toolkit ended while it connected to {argv[0]}"
    print(said, file=sys.stderr)
    return 255
