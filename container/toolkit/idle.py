"""Run as the first process of a container that is kept between jobs (``python -m container idle SOCKET``).

The process has loaded the toolkit's modules, and forks a toolkit for each job. Therefore no program has to be started
in the container before a job's script runs. Each forked toolkit ends with its job. Only the importer
(:mod:`container.toolkit.importer`) stays for the scripts of the next job, as long as this process runs.

After SIGTERM (``docker stop``), the process sends SIGTERM to the running toolkits, and exits after they have exited. A
second SIGTERM, or SIGINT, makes the process exit at once.

A supervisor connects to SOCKET and sends ``run`` with the job's ``environment`` and a descriptor for the toolkit's
standard input, output and error. When the toolkit has ended, this process answers with ``ended`` and the toolkit's
``exit_code``. If a signal has killed the toolkit, the exit code is 128 plus the signal's number. The process can run
several jobs at once, but a pool runs only one job at a time.
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

#: Time limit for the request of a supervisor that has connected, in seconds. Other supervisors must wait meanwhile.
_PATIENCE = 5.0


def main(argv: list[str]) -> int:
    """Serve requests until SIGTERM.

    Returns:
        0 if all jobs have ended; 143 if a job was still running.
    """
    [place] = argv
    train.load_runtime(launchers.of(None))  # the runtime of most jobs, loaded once instead of in each job
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(place)
    os.chmod(place, 0o666)  # for a supervisor that is not root; only the supervisor's user can enter the folder
    listener.listen()
    return _Idle(SelectorLoop(), listener).run()


class _Idle:
    """Fork toolkits until this process receives SIGTERM or SIGINT.

    Args:
        loop: The event loop.
        listener: The socket to which supervisors connect.
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
        """Serve requests, and return the exit code of this process."""
        self._loop.run()
        return 128 + signal.SIGTERM if self._jobs else 0

    def _end(self) -> None:
        """Send SIGTERM to the toolkits, whose scripts get time to save. Exit after all toolkits have exited."""
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
        except (OSError, ValueError):  # a program only tested the connection, or disconnected
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
    """Return the variables of a job, and the descriptor that was sent with them.

    Raises:
        ValueError: the message is not a valid request.
    """
    match connection.receive(_PATIENCE, descriptors=1):
        case {"op": "run", "environment": dict(environment)}:
            descriptors = connection.take_descriptors()
            if len(descriptors) == 1:
                return {str(name): str(value) for name, value in environment.items()}, descriptors[0]
            for descriptor in descriptors:
                os.close(descriptor)
    raise ValueError("not a job")


def _become_toolkit(environment: dict[str, str], descriptor: int) -> NoReturn:
    """Run the toolkit in this fork, as the command ``python -m container train`` would, and exit."""
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
    except BaseException:  # noqa: BLE001 - the child must not continue in the parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
