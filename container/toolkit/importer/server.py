"""Run the machine's importer: a Python process that imports packages of scripts, and is forked for each rank.

A toolkit starts the importer (:mod:`container.toolkit.importer.importer`). The importer executes the imports that the
toolkit has read from a script. Then the importer serves toolkits. For each toolkit, the importer forks a process that
becomes the importer of the toolkit's host. The host's importer ends with its toolkit, and kills all of its descendants.

The host's importer forks a process for each rank wrapper that requests it (:mod:`container.toolkit.importer.client`).
This process runs the wrapper's command as ``python train.py`` would: with a new ``__main__``, ``sys.argv`` and
``sys.path``, and to the interpreter's regular end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from container.contract import variables
from container.system import importers, inherited, machine, processes, scripts
from container.system.fork_server import ForkServer, send
from container.toolkit.importer import loading

#: How often to check whether the machine's importer is still needed, and how long to wait for the first host, in
#: seconds.
_LOOK_S, _FIRST_S = 1.0, 2.0
#: Share of the machine's memory that must be available. If less is available, an importer that is kept for later jobs
#: ends.
_SPARE_MEMORY = 0.1
_PACKAGE = str(Path(__file__).resolve().parents[2])

Request = Mapping[str, Any]


class _Machine(ForkServer):
    """Serve toolkits as long as the processes that have started these toolkits live. Serve longer if the toolkits
    request it.

    The imports are executed at the first request.

    Args:
        listener: The socket to which toolkits connect.
        place: The path of that socket.
    """

    def __init__(self, listener: socket.socket, place: Path) -> None:
        super().__init__(listener, "fleetfit-import")
        self.given: loading.Given | None = None
        self._place = place
        self._identity = loading.identity(str(place))
        self._holders: dict[int, str] = {}  # pid -> time of the process's start
        self._until = time.monotonic() + _FIRST_S
        self._keep = 0.0
        self._with = 0, ""  # a process that ends a kept importer, and the time of its start
        self.packages: list[str] = []
        self.seconds = 0.0

    def _load(self, plan: Request) -> loading.Given:
        began = time.monotonic()
        try:
            given = loading.load(plan, self)
        except loading.Unfit as error:
            self.leave(str(error))
        except BaseException as error:  # noqa: BLE001 - a module may raise anything, which the toolkits receive
            self.leave(f"{type(error).__name__}: {error}")
        self.packages = sorted({statement.split()[1] for statement in plan["statements"]})
        self.seconds = round(time.monotonic() - began, 3)
        os.environ.clear()
        os.chdir("/")  # the working directory is the job's, and may be removed
        processes.set_death_signal(0, os.getppid())  # until here, the importer ended with the toolkit that started it
        gc.freeze()  # otherwise garbage collection in ranks would write to shared pages
        return given

    def leave(self, unfit: str = "") -> NoReturn:
        """Remove the socket and exit.

        Args:
            unfit: The reason why no rank can be forked. A reason is reported to waiting toolkits. An empty text is not
                reported.
        """
        if unfit:
            self.tell({"unfit": unfit})
        if not self._place_is_others():
            importers.forget(self._place)
        os._exit(0)

    def _patience(self) -> float | None:
        if self._forked:
            return None
        self._holders = {pid: began for pid, began in self._holders.items() if processes.lives(pid, began)}
        if self._place_is_others() or not (self._holders or self._is_kept()):
            self.leave()
        return _LOOK_S * 1000

    def _is_kept(self) -> bool:
        """Return whether this process should continue to wait for a later job."""
        facts = machine.facts()
        short = facts.memory_available_bytes < _SPARE_MEMORY * facts.memory_bytes
        over = time.monotonic() >= self._until or (self._with[0] and not processes.lives(*self._with))
        return not (short or over)

    def _place_is_others(self) -> bool:
        return loading.identity(str(self._place)) != self._identity

    def _refusal(self, request: Request) -> str | None:
        if self.given is None:
            self.given = self._load(request)
        return self.given.staleness(request["names"]) or self.given.refusal(request["environment"], request["cwd"])

    def _answer(self, sock: socket.socket, request: Request, pid: int, why: str) -> None:
        if pid < 0:
            send(sock, {"op": "refused"})  # the toolkit then starts another importer
        else:
            self._forked[pid] = sock
            self._holders[request["holder"]] = processes.began(request["holder"])
            self._keep = request["keep"]
            self._with = request["keep_with"], processes.began(request["keep_with"])
            self.seconds = 0.0  # later toolkits have not waited for the imports
            self._note(None)
        self.drop(sock)

    def _ended(self, pid: int, status: int, usage: object = None) -> None:
        if self._forked.pop(pid, None) is None:
            return
        if status != 0:  # the process could not end its child processes, or its toolkit was killed
            for other, its_status in processes.end_descendants(spare=self._forked)[1].items():
                self._ended(other, its_status)
            self._keep = 0.0
        self._until = time.monotonic() + self._keep
        if not self._forked:
            self._note(time.time() + self._keep)

    def _note(self, until: float | None) -> None:
        """Write a description of this process, for programs that search for kept importers."""
        with contextlib.suppress(OSError):
            if not self._place_is_others():
                importers.note(self._place, os.getpid(), self.packages, until)


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
        self._code = request["cwd"]  # ranks may have another path to the same folder, with links
        self.given = machine.given
        self._toolkit: socket.socket = request["peer"]
        self.peers[self._toolkit.fileno()] = self._toolkit
        self._poll.register(self._toolkit, select.POLLIN)
        send(self._toolkit, {"imported": machine.packages, "seconds": machine.seconds})
        send(self._toolkit, {"op": "hosting", "pid": os.getpid()})

    def _refusal(self, request: Request) -> str | None:
        python, script = request["argv"][:2]
        if python != sys.executable or not (script.endswith(".py") or _serves(request)):
            return "its command differs"
        return inherited.difference(request["pid"]) or self.given.refusal(request["environment"], self._code)

    def _answer(self, sock: socket.socket, request: Request, pid: int, why: str) -> None:
        if pid < 0:
            send(self._toolkit, {"refused": why})
            send(sock, {"op": "refused"})
            return
        self._forked[pid] = sock
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here too, because the receiver of the pid may signal the group at once
        send(sock, {"op": "forked", "pid": pid})

    def _hung_up(self, sock: socket.socket, data: bytes) -> None:
        if sock is self._toolkit:
            processes.end_descendants()
            os._exit(0 if b'"end"' in data else 1)
        for pid in [pid for pid, asked in self._forked.items() if asked is sock]:
            os.kill(pid, signal.SIGKILL)
        self.drop(sock)

    def _ended(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        if sock := self._forked.pop(pid, None):
            send(sock, {"op": "ended", "status": status, "max_rss_kb": usage.ru_maxrss})


def _serves(request: Request) -> bool:
    """Return whether a command runs a server of fleetfit instead of a script."""
    return bool(request["argv"][1:] == ["-I", os.path.join(_PACKAGE, "__main__.py"), "serve"])


def _become(request: Request, given: loading.Given, begin: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Set up this process in the same way as a rank wrapper sets up the process of its command.

    Returns:
        The path of the script, and the namespace of its ``__main__`` module.
    """
    output, events, *place = request["passed"]
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    environment = request["environment"] | {variables.EVENTS: f"{events}:{os.fstat(events).st_ino}"}
    for fd in place:
        environment[variables.PLACE_FD] = str(fd)
    for fd in (events, *place):
        os.set_inheritable(fd, True)
    os.environ.clear()
    os.environ.update(environment)
    inherited.take_over(request["pid"])
    _reseed()
    script = os.path.join(os.getcwd(), request["argv"][1])
    folders = loading.python_path(request["environment"])
    sys.path[:] = [folder for folder in sys.path if folder not in folders]
    if _serves(request):
        script = request["argv"][2]
    else:
        sys.path[:] = [os.path.dirname(os.path.realpath(script)), *folders, *sys.path]
        sys._fleetfit_go_on()  # type: ignore[attr-defined]
        given.hide()
    processes.set_name("fleetfit-server" if _serves(request) else os.path.basename(script))
    return script, scripts.become(request["argv"], script, begin)


def _reseed() -> None:
    """Reseed random number generators and create new keys. Python's module ``random`` reseeds itself after a fork."""
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()
    if process := sys.modules.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]


def main(begin: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Run an importer. This function returns only in a process that will run a script.

    Args:
        begin: The names that the interpreter has set in its ``__main__``.

    Returns:
        The path of the script, and the namespace of its ``__main__`` module.
    """
    del sys.path[0]
    listener, place = os.environ.pop(variables.IMPORTER).split(":", 1)
    server = _Machine(socket.socket(fileno=int(listener)), Path(place))
    host = _Host(server.run(), server)
    toolkits = os.getpid()
    request = host.run()
    request["peer"].close()
    processes.set_death_signal(signal.SIGKILL, toolkits)
    return _become(request, host.given, begin)
