"""``python -m container idle SOCKET``: the first process of a container that is kept warm between jobs.

It has the toolkit loaded, and forks it for each job: nothing has to be started in the container before a job's script
runs. What a job wrote into its process goes with it. Only the importer stays for the next job's scripts
(:mod:`container.toolkit.importer`), for as long as this process is there. On SIGTERM (``docker stop``) it passes that
on to the toolkit and ends after it; a second one, or SIGINT, ends it at once.

A supervisor connects to SOCKET and sends ``run`` with the job's ``environment`` and, beside it, a descriptor: the
toolkit's standard input, output and error. When the toolkit has ended, ``ended`` with its ``exit_code`` comes back, 128
and the signal's number after a signal. Several jobs at once would get along, but a pool runs one at a time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from typing import NoReturn

from container import launchers
from container.contract import variables
from container.system import folders, processes
from container.system.connection import BlockingConnection
from container.system.loop import SelectorLoop
from container.toolkit import train

#: What a supervisor that connects has to say what it wants, in seconds: others wait meanwhile.
_PATIENCE = 5.0


def main(argv: list[str]) -> int:
    """Serve until SIGTERM."""
    [place] = argv
    train.load_runtime(launchers.of(None))  # that of most, now rather than by each job
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(place)
    os.chmod(place, 0o666)  # a supervisor that is not root; the folder around it is its user's only
    listener.listen()
    return _Idle(SelectorLoop(), listener).run()


class _Idle:
    """Forks toolkits until it is told to end.

    Args:
        loop: The loop that drives it.
        listener: Where supervisors connect.
    """

    def __init__(self, loop: SelectorLoop, listener: socket.socket) -> None:
        self._loop = loop
        self._listener = listener
        self._jobs: set[int] = set()  # the toolkits' pids
        self._told = False
        self._importers = folders.unmade()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        loop.add_signal_handler(signal.SIGINT, loop.stop)
        loop.add_reader(listener.fileno(), self._accept)

    def run(self) -> int:
        """Serve; the exit code."""
        self._loop.run()
        return 128 + signal.SIGTERM if self._jobs else 0

    def _end(self) -> None:
        """Let the toolkits end first, whose scripts have time to save."""
        if self._told or not self._jobs:
            self._loop.stop()
            return
        self._told = True
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for pid in self._jobs:
            os.kill(pid, signal.SIGTERM)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        connection = BlockingConnection(sock, limit=variables.VARIABLES_LIMIT)
        try:
            environment, descriptor = _receive(connection)
        except (OSError, ValueError):  # somebody looks whether we are here, or went away
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            _become_toolkit({**environment, variables.IMPORTERS: str(self._importers)}, descriptor)
        os.close(descriptor)

        def ended(status: int) -> None:
            self._jobs.remove(pid)
            code, number = processes.decode_status(status)
            with connection, contextlib.suppress(OSError):
                connection.send({"op": "ended", "exit_code": code if number is None else 128 + number})
            if self._told and not self._jobs:
                self._loop.stop()

        self._jobs.add(pid)
        self._loop.on_child(pid, ended)


def _receive(connection: BlockingConnection) -> tuple[dict[str, str], int]:
    """Return a job's variables, and the descriptor that came with them."""
    match connection.receive(_PATIENCE, descriptors=1):
        case {"op": "run", "environment": dict(environment)}:
            descriptors = connection.take_descriptors()
            if len(descriptors) == 1:
                return {str(name): str(value) for name, value in environment.items()}, descriptors[0]
            for descriptor in descriptors:
                os.close(descriptor)
    raise ValueError("not a job")


def _become_toolkit(environment: dict[str, str], descriptor: int) -> NoReturn:
    """In the fork: be what ``python -m container train`` would be, started in this container."""
    code = 1
    try:
        os.setsid()
        for standard in (0, 1, 2):
            os.dup2(descriptor, standard)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        os.chdir("/")
        os.environ.update(environment)
        code = train.main([])
    except BaseException:  # noqa: BLE001 - nothing of the parent's stack may run on in the child
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
