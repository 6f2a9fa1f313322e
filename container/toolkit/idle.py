"""Run as the first process of a container that is kept between jobs (``python -m container idle SOCKET``).

The process has loaded the toolkit's modules, and forks a toolkit for each job. Therefore no program has to be started
in the container before a job's script runs. Each forked toolkit ends with its job. Only the importer
(:mod:`container.toolkit.importer`) stays for the scripts of the next job, as long as this process runs.

One job at a time has the container: the job whose supervisor is connected to SOCKET. This process sends ``yours`` to
this supervisor, and ``busy`` to any other supervisor that connects. The job's supervisor passes the ``environment`` of
a toolkit, with a descriptor for the toolkit's standard input, output and error, and a descriptor for the answer. When
the toolkit has ended, this process answers with ``ended`` and the toolkit's ``exit_code``. If a signal has killed the
toolkit, the exit code is 128 plus the signal's number.

Before the supervisor closes the connection, it sends ``keep``: for how many seconds this process waits for the next
job. If no job has taken the container within this time, this process exits, and the container ends. If the supervisor
was killed after it had started a toolkit, or sends 0, this process exits at once.

After SIGTERM (``docker stop``), the process sends SIGTERM to the running toolkits, and exits after they have exited. A
second SIGTERM, or SIGINT, makes the process exit at once.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from container import launchers
from container.contract import variables
from container.system import folders, processes
from container.system.fork_server import ForkServer, decoded, send
from container.toolkit import train

#: Time in seconds within which the job that has created the container must connect.
_FIRST_S = 60.0


def main(argv: list[str]) -> NoReturn:
    """Serve jobs until the container is no longer kept, or until SIGTERM.

    The exit code is 0 if all toolkits have ended, and 143 if a toolkit is still running.
    """
    [place] = argv
    train.load_runtime(launchers.of(None))  # the runtime of most jobs, loaded once instead of in each job
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(place)
    os.chmod(place, 0o666)  # for a supervisor that is not root; only the supervisor's user can enter the folder
    listener.listen()
    importers = folders.unmade()
    request = _Idle(listener).run()
    _become_toolkit({**request["environment"], variables.IMPORTERS: str(importers)}, *request["passed"])


class _Idle(ForkServer):
    """Fork toolkits for one job after another.

    Args:
        listener: The socket to which supervisors connect.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener, "fleetfit-idle")
        self._until = time.monotonic() + _FIRST_S
        self._job: socket.socket | None = None  # the connection of the job that has the container
        self._used = False  # whether a toolkit was forked for this job
        self._ending = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def _end(self, number: int, frame: object) -> None:
        """Send SIGTERM to the toolkits, whose scripts get time to save. Exit after the toolkits have exited.

        After SIGINT or a second signal, or if no toolkit runs, exit at once.
        """
        if self._ending or not self._forked or number == signal.SIGINT:
            sys.exit(128 + signal.SIGTERM if self._forked else 0)
        self._ending = True
        for pid in self._forked:
            os.kill(pid, signal.SIGTERM)

    def _patience(self) -> float | None:
        if self._forked or (self._job is not None and not self._ending):
            return None
        left = self._until - time.monotonic()
        if left <= 0 or self._ending:
            sys.exit(0)
        return left * 1000

    def accept(self) -> None:
        super().accept()
        for sock in list(self.peers.values()):
            if self._job is None and not self._ending and time.monotonic() < self._until:
                self._job, self._used = sock, False
                send(sock, {"op": "yours"})
            elif sock is not self._job:
                send(sock, {"op": "busy"})
                self.drop(sock)

    def _refusal(self, request: Mapping[str, Any]) -> str | None:
        return "the container is ending" if self._ending else None

    def _answer(self, sock: socket.socket, request: Mapping[str, Any], pid: int, why: str) -> None:
        if pid < 0:
            sys.exit(1)  # a supervisor takes the container's end for the answer
        self._used = True
        self._forked[pid] = socket.socket(fileno=os.dup(request["passed"][1]))

    def _ended(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        if pid in self._forked:
            code, number = processes.decode_status(status)
            with self._forked.pop(pid) as answer:
                send(answer, {"op": "ended", "exit_code": code if number is None else 128 + number})

    def _hung_up(self, sock: socket.socket, data: bytes) -> None:
        kept = decoded(data).get("keep")
        if kept is not None or self._used:
            self._until = time.monotonic() + (kept or 0.0)
        self._job = None
        self.drop(sock)


def _become_toolkit(environment: Mapping[str, str], descriptor: int, *others: int) -> NoReturn:
    """Run the toolkit in this fork, as the command ``python -m container train`` would, and exit."""
    code = 1
    try:
        os.setsid()
        for standard in (0, 1, 2):
            os.dup2(descriptor, standard)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        os.chdir("/")
        os.environ.update(environment)
        processes.set_name("python")
        code = train.main([])
    except BaseException:  # noqa: BLE001 - the child must not continue in the parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
