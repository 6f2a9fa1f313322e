"""Run the machine's importer: a Python process that imports packages of scripts, and is forked for each rank.

A toolkit starts the importer (:mod:`container.toolkit.importer.importer`). The importer executes the imports that the
toolkit has read from a script. Then the importer serves toolkits. For each toolkit, the importer forks a process that
becomes the importer of the toolkit's host. The host's importer ends with its toolkit, and kills all of its descendants.

The host's importer forks a process for each rank wrapper that requests it (:mod:`container.toolkit.rank`).
This process runs the wrapper's command as ``python train.py`` would: with a new ``__main__``, ``sys.argv`` and
``sys.path``, and to the interpreter's regular end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from container.contract import variables
from container.system import forking, importers, inherited, machine, processes, scripts
from container.system.fork_server import ForkServer, send
from container.toolkit.importer import loading
from container.toolkit.importer.loading import Request

#: How often to check whether the machine's importer is still needed, in seconds.
_LOOK_S = 1.0
#: Share of the machine's memory that must be available. If less is available, an importer that is kept for later jobs
#: ends.
_SPARE_MEMORY = 0.1


class _Machine(ForkServer):
    """Serve toolkits until all processes that have started these toolkits have ended. Then continue to serve for the
    number of seconds that the last toolkit has requested as ``keep``.

    The imports are executed at the first request. An importer that has refused a toolkit removes its socket, so that
    the toolkit starts another importer.

    Args:
        listener: The socket to which toolkits connect.
        place: The path of that socket.

    Attributes:
        given: The imported modules. None before the first request.
        imported: The message for each toolkit: ``imported`` (the names of the packages), and ``seconds`` (how long the
            toolkit has waited for the imports). ``seconds`` is 0 for all toolkits but the first.
    """

    def __init__(self, listener: socket.socket, place: Path) -> None:
        super().__init__(listener, "fleetfit-import")
        self.given: loading.Given | None = None
        self.imported: dict[str, Any] = {}
        self._place = place
        self._holders: set[tuple[int, str]] = set()  # processes: their pids, and the times of their starts
        self._keep, self._keeper, self._until = 0.0, (0, ""), 0.0

    def _load(self, request: Request) -> loading.Given:
        """Execute the imports. If the imported modules cannot be used in forked ranks, report the reason, and exit.

        Standard output and standard error become a file in memory, which stores the text that the modules print.
        """
        began = time.monotonic()
        printed = os.memfd_create("printed")
        for stream in (1, 2):
            os.dup2(printed, stream)
        os.close(printed)
        opened = forking.descriptors()
        try:
            given = loading.load(request, lambda name: self.tell({"importing": name}))
            unfit = given.staleness(request["names"]) or forking.obstacle(opened, self.descriptors)
        except BaseException as error:  # noqa: BLE001 - a module may raise anything, which the toolkits receive
            unfit = f"{type(error).__name__}: {error}"
        if unfit:
            self.tell({"unfit": unfit})
            self._leave()
        packages = sorted({statement.split()[1] for statement in request["statements"]})
        self.imported = {"imported": packages, "seconds": round(time.monotonic() - began, 3)}
        os.environ.clear()
        os.chdir("/")  # the working directory is the job's, and may be removed
        processes.set_death_signal(0, os.getppid())  # until here, the importer ended with the toolkit that started it
        gc.freeze()  # otherwise garbage collection in ranks would write to shared pages
        return given

    def _leave(self) -> NoReturn:
        importers.forget(self._place)
        os._exit(0)

    def _owns_place(self) -> bool:
        return importers.noted_pid(self._place) == os.getpid()

    def _patience(self) -> float | None:
        if self._forked or self.given is None:
            return None
        facts = machine.facts()
        has_memory = facts.memory_available_bytes >= _SPARE_MEMORY * facts.memory_bytes
        is_kept = has_memory and time.monotonic() < self._until and processes.lives(*self._keeper)
        is_held = any(processes.lives(*holder) for holder in self._holders)
        if not (is_kept or is_held) or not self._owns_place():
            self._leave()
        return _LOOK_S * 1000

    def _refusal(self, request: Request) -> str | None:
        if self.given is None:
            self.given = self._load(request)
        return self.given.staleness(request["names"]) or self.given.refusal(request["environment"])

    def _answer(self, sock: socket.socket, request: Request, pid: int, why: str) -> None:
        if pid < 0:
            importers.forget(self._place)
        super()._answer(sock, request, pid, why)
        if pid < 0:
            return
        holder, keeper = request["holder"], request["keep_with"] or os.getpid()
        self._holders.add((holder, processes.began(holder)))
        self._keep, self._keeper = request["keep"], (keeper, processes.began(keeper))
        send(sock, self.imported)
        self.imported["seconds"] = 0.0  # later toolkits have not waited for the imports
        self._note(None)
        self.drop(sock)

    def _ended(self, pid: int, status: int, usage: object) -> None:
        if self._forked.pop(pid, None) is None:
            return
        if status != 0:  # the process could not end its child processes, or its toolkit was killed
            for other in processes.end_descendants(spare=self._forked)[1]:
                self._forked.pop(other, None)  # a process that was spared, and has ended meanwhile
            self._keep = 0.0
        self._until = time.monotonic() + self._keep
        if not self._forked:
            self._note(time.time() + self._keep)

    def _note(self, until: float | None) -> None:
        """Write a description of this process into a file beside the socket, for programs that list kept importers.

        Args:
            until: The time until which this process is kept while no toolkit uses it, in seconds since the epoch. None
                while a toolkit uses it.
        """
        with contextlib.suppress(OSError):
            if self._owns_place():
                importers.note(self._place, os.getpid(), self.imported["imported"], until)


class _Host(ForkServer):
    """Serve the rank wrappers of a host as long as the host's toolkit lives.

    Args:
        request: The toolkit's request.
        machine: The machine's importer, from which this process was forked.
    """

    def __init__(self, request: Request, machine: _Machine) -> None:
        assert machine.given is not None  # otherwise no request would have been accepted
        super().__init__(socket.socket(fileno=request["passed"][0]), "fleetfit-host")
        os.setsid()
        os.chdir(request["cwd"])
        self.given = machine.given
        self._python_path = request["environment"]["PYTHONPATH"]
        self._toolkit: socket.socket = request["peer"]
        self.peers[self._toolkit.fileno()] = self._toolkit
        self._poll.register(self._toolkit, select.POLLIN)

    def _refusal(self, request: Request) -> str | None:
        if request["environment"].get("PYTHONPATH") != self._python_path:  # mpirun's option -x may set another one
            return "PYTHONPATH differs"
        return inherited.difference(request["pid"]) or self.given.refusal(request["environment"])

    def _answer(self, sock: socket.socket, request: Request, pid: int, why: str) -> None:
        if pid < 0:
            send(self._toolkit, {"refused": why})
        else:
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # here too, because the receiver of the pid may signal the group at once
        super()._answer(sock, request, pid, why)

    def _hung_up(self, sock: socket.socket, data: bytes) -> None:
        if sock is self._toolkit:
            processes.end_descendants()
            os._exit(0 if b'"end"' in data else 1)
        super()._hung_up(sock, data)


def _become(request: Request, given: loading.Given) -> tuple[str, dict[str, Any]]:
    """Turn this forked process into the process of a rank: set the environment, the output, the process group and
    ``sys.path``, as a rank wrapper does for its command.

    Args:
        request: The request of the rank wrapper.
        given: The modules that the importer has imported.

    Returns:
        The path of the script, and the namespace of its ``__main__`` module.
    """
    command, environment = request["argv"], request["environment"]
    output, events, *place = request["passed"]
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    for fd in (events, *place):
        os.set_inheritable(fd, True)
    os.environ.clear()
    os.environ.update(environment)
    os.environ[variables.EVENTS] = f"{events}:{os.fstat(events).st_ino}"
    for fd in place:
        os.environ[variables.PLACE_FD] = str(fd)
    inherited.take_over(request["pid"])
    _reseed()
    folders = list(map(os.path.abspath, environment["PYTHONPATH"].split(os.pathsep)))
    sys.path[:] = [folder for folder in sys.path if folder not in folders]
    is_server = command[1] == "-I"  # one of fleetfit's own programs
    script = os.path.join(os.getcwd(), command[2 if is_server else 1])
    if not is_server:
        sys.path[:] = [os.path.dirname(os.path.realpath(script)), *folders, *sys.path]
        sys._fleetfit_go_on()  # type: ignore[attr-defined]
        given.hide()
    processes.set_name("fleetfit-server" if is_server else os.path.basename(script))
    return script, scripts.become(command, script)


def _reseed() -> None:
    """Reseed random number generators and create new keys. Python's module ``random`` reseeds itself after a fork."""
    for module in [sys.modules[name] for name in ("numpy.random", "torch") if name in sys.modules]:
        module.seed()
    if process := sys.modules.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]


def main() -> tuple[str, dict[str, Any]]:
    """Run an importer. This function returns only in a process that will run a script.

    Returns:
        The path of the script, and the namespace of its ``__main__`` module.
    """
    del sys.path[0]
    listener, place = os.environ.pop(variables.IMPORTER).split(":", 1)
    server = _Machine(socket.socket(fileno=int(listener)), Path(place))
    host = _Host(server.run(), server)
    host_pid = os.getpid()
    request = host.run()
    request["peer"].close()
    processes.set_death_signal(signal.SIGKILL, host_pid)
    return _become(request, host.given)
