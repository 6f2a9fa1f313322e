"""The machine's importer: a Python that has imported what scripts will import, and is forked for each of their ranks.

A toolkit starts it (:mod:`container.toolkit.importer.importer`). It imports what the toolkit has read from a script,
and serves hosts: for each toolkit that asks it forks a process, the host's own importer, which ends with its toolkit
and takes everything below it along. That one forks a process for each rank wrapper that asks
(:mod:`container.toolkit.importer.client`). The process runs the wrapper's command as ``python train.py`` would: with a
``__main__``, ``sys.argv`` and ``sys.path`` of its own, and to the interpreter's own end.
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

#: How often it is looked whether the machine's importer is needed, in seconds, and how long the first host may take.
_LOOK_S, _FIRST_S = 1.0, 2.0
#: What of the machine's memory must be left for others, or a kept importer goes.
_SPARE_MEMORY = 0.1
_PACKAGE = str(Path(__file__).resolve().parents[2])

Request = Mapping[str, Any]


class _Machine(ForkServer):
    """Serves toolkits, for as long as those above them live for whom it was started, and where they want that, longer.

    It imports when the first of them asks.

    Args:
        listener: Where toolkits connect.
        place: The path of that socket.
    """

    def __init__(self, listener: socket.socket, place: Path) -> None:
        super().__init__(listener, "fleetfit-import")
        self.given: loading.Given | None = None
        self._place = place
        self._identity = loading.identity(str(place))
        self._holders: dict[int, str] = {}  # by pid, when it began
        self._until = time.monotonic() + _FIRST_S
        self._keep = 0.0
        self._with = 0, ""  # the process with which it ends, and when that began
        self.packages: list[str] = []
        self.seconds = 0.0

    def _load(self, plan: Request) -> loading.Given:
        began = time.monotonic()
        try:
            given = loading.load(plan, self)
        except loading.Unfit as error:
            self.leave(str(error))
        except BaseException as error:  # noqa: BLE001 - whatever a module raises, the toolkits are told
            self.leave(f"{type(error).__name__}: {error}")
        self.packages = sorted({statement.split()[1] for statement in plan["statements"]})
        self.seconds = round(time.monotonic() - began, 3)
        os.environ.clear()
        os.chdir("/")  # the folder is its job's, which may be removed
        processes.set_death_signal(0, os.getppid())  # until here it ended with the toolkit that has started it
        gc.freeze()  # or collections in ranks would write to pages that they share
        return given

    def leave(self, unfit: str = "") -> NoReturn:
        """End, and leave nothing behind; tell toolkits that wait why no rank can be forked."""
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
        """Return whether this process waits for a next job."""
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
            send(sock, {"op": "refused"})  # for which the toolkit starts another one in this one's place
        else:
            self._forked[pid] = sock
            self._holders[request["holder"]] = processes.began(request["holder"])
            self._keep = request["keep"]
            self._with = request["keep_with"], processes.began(request["keep_with"])
            self.seconds = 0.0  # others have not waited for it
            self._note(None)
        self.drop(sock)

    def _ended(self, pid: int, status: int, usage: object = None) -> None:
        if self._forked.pop(pid, None) is None:
            return
        if status != 0:  # it could not see to what it had started, or its toolkit was killed
            for other, its_status in processes.end_descendants(spare=self._forked)[1].items():
                self._ended(other, its_status)
            self._keep = 0.0
        self._until = time.monotonic() + self._keep
        if not self._forked:
            self._note(time.time() + self._keep)

    def _note(self, until: float | None) -> None:
        """Write down who this is, for those who look for what is kept."""
        with contextlib.suppress(OSError):
            if not self._place_is_others():
                importers.note(self._place, os.getpid(), self.packages, until)


class _Host(ForkServer):
    """Serves a host's wrappers, for as long as its toolkit lives.

    Args:
        request: The toolkit's.
        machine: The machine's importer, of which this process is a fork.
    """

    def __init__(self, request: Request, machine: _Machine) -> None:
        assert machine.given is not None  # or it would have answered nobody
        super().__init__(socket.socket(fileno=request["passed"][0]), "fleetfit-host")
        os.setsid()
        os.chdir(request["cwd"])
        self._code = request["cwd"]  # which a rank may know by another name, where links lead to it
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
            os.setpgid(pid, pid)  # here as well: who is told of it may signal its group at once
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
    """Return whether a command is a server of ours, rather than a script."""
    return bool(request["argv"][1:] == ["-I", os.path.join(_PACKAGE, "__main__.py"), "serve"])


def _become(request: Request, given: loading.Given, begin: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Take over what a wrapper would have given its command; return the script, and the names of its module."""
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
    """Give this process random numbers and keys of its own; Python's own ``random`` sees to itself."""
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()
    if process := sys.modules.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]


def main(begin: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Be an importer; return in a process that is to run a script, with the script and the names of its module.

    Args:
        begin: The names that the interpreter has given its ``__main__``.
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
