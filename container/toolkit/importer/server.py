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
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from container.contract import variables
from container.system import forking, importers, inherited, machine, processes, scripts
from container.system.fork_server import ForkServer, send
from container.toolkit.importer import loading

#: How often to check whether the machine's importer is still needed, and how long to wait for the first host, in
#: seconds.
_LOOK_S, _FIRST_S = 1.0, 2.0
#: Share of the machine's memory that must be available. If less is available, an importer that is kept for later jobs
#: ends.
_SPARE_MEMORY = 0.1

Request = Mapping[str, Any]


class _Machine(ForkServer):
    """Serve toolkits as long as the processes that have started these toolkits live. Serve longer if the toolkits
    request it.

    The imports are executed at the first request. An importer that has refused a toolkit gives its socket up, so that
    the toolkit starts another importer.

    Args:
        listener: The socket to which toolkits connect.
        place: The path of that socket.

    Attributes:
        given: The imported modules. None before the first request.
        imported: The imported packages, and how long the next toolkit has waited for the imports, in seconds.
    """

    def __init__(self, listener: socket.socket, place: Path) -> None:
        super().__init__(listener, "fleetfit-import")
        self.given: loading.Given | None = None
        self.imported: dict[str, Any] = {}
        self._place, self._identity = place, loading.identity(place)
        self._holders: dict[int, str] = {}  # pid -> time of the process's start
        self._keep = 0.0
        self._keep_with: dict[int, str] = {}  # processes whose end also ends a kept importer, as in _holders
        self._until = time.monotonic() + _FIRST_S

    def _load(self, request: Request) -> loading.Given:
        """Execute the imports. Standard output and standard error become a file in memory, which stores the text that
        the modules print.
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
        return loading.identity(self._place) == self._identity

    def _patience(self) -> float | None:
        if self._forked:
            return None
        facts = machine.facts()
        is_kept = (
            time.monotonic() < self._until
            and facts.memory_available_bytes >= _SPARE_MEMORY * facts.memory_bytes
            and all(processes.lives(*one) for one in self._keep_with.items())
        )
        if not self._owns_place() or not (is_kept or any(processes.lives(*one) for one in self._holders.items())):
            self._leave()
        return _LOOK_S * 1000

    def _refusal(self, request: Request) -> str | None:
        if self.given is None:
            self.given = self._load(request)
        return self.given.staleness(request["names"]) or self.given.refusal(request["environment"])

    def _refused(self, why: str) -> None:
        if self._owns_place():
            importers.remove(self._place)

    def _granted(self, sock: socket.socket, request: Request, pid: int) -> None:
        self._holders[request["holder"]] = processes.began(request["holder"])
        self._keep = request["keep"]
        self._keep_with = {one: processes.began(one) for one in request["keep_with"]}
        self.imported["seconds"] = 0.0  # later toolkits have not waited for the imports
        self._note(None)
        self._drop(sock)

    def _ended(self, sock: socket.socket, status: int, usage: object) -> None:
        if status != 0:  # the process could not end its child processes, or its toolkit was killed
            for pid in processes.end_descendants(spare=self._forked)[1]:
                self._forked.pop(pid, None)  # one that was spared, and has ended meanwhile
            self._keep = 0.0
        self._until = time.monotonic() + self._keep
        if not self._forked:
            self._note(time.time() + self._keep)

    def _note(self, until: float | None) -> None:
        """Write a description of this process, for programs that search for kept importers."""
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
        self._toolkit: socket.socket = request["peer"]
        self._add(self._toolkit)
        send(self._toolkit, {"hosting": os.getpid(), **machine.imported})

    def _refusal(self, request: Request) -> str | None:
        if request["argv"][0] != sys.executable or not _script(request).endswith(".py"):
            return "its command differs"
        return inherited.difference(request["pid"]) or self.given.refusal(request["environment"])

    def _refused(self, why: str) -> None:
        send(self._toolkit, {"refused": why})

    def _granted(self, sock: socket.socket, request: Request, pid: int) -> None:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here too, because the receiver of the pid may signal the group at once
        send(sock, {"op": "forked", "pid": pid})

    def _hung_up(self, sock: socket.socket, data: bytes) -> None:
        if sock is self._toolkit:
            processes.end_descendants()
            os._exit(0 if b'"end"' in data else 1)
        for pid in [pid for pid, asked in self._forked.items() if asked is sock]:
            os.kill(pid, signal.SIGKILL)
        self._drop(sock)

    def _ended(self, sock: socket.socket, status: int, usage: resource.struct_rusage) -> None:
        send(sock, {"op": "ended", "status": status, "max_rss_kb": usage.ru_maxrss})


def _script(request: Request) -> str:
    """Return the script that a rank wrapper's command runs. fleetfit's own servers are run with the option ``-I``."""
    script: str = request["argv"][2 if request["argv"][1] == "-I" else 1]
    return script


def _become(request: Request, given: loading.Given) -> tuple[str, dict[str, Any]]:
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
    for fd in (events, *place):
        os.set_inheritable(fd, True)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.environ[variables.EVENTS] = f"{events}:{os.fstat(events).st_ino}"
    for fd in place:
        os.environ[variables.PLACE_FD] = str(fd)
    inherited.take_over(request["pid"])
    _reseed()
    script = os.path.join(os.getcwd(), _script(request))
    folders = loading.python_path(request["environment"])
    sys.path[:] = [folder for folder in sys.path if folder not in folders]
    is_server = request["argv"][1] == "-I"
    if not is_server:
        sys.path[:] = [os.path.dirname(os.path.realpath(script)), *folders, *sys.path]
        sys._fleetfit_go_on()  # type: ignore[attr-defined]
        given.hide()
    processes.set_name("fleetfit-server" if is_server else os.path.basename(script))
    return script, scripts.become(request["argv"], script)


def _reseed() -> None:
    """Reseed random number generators and create new keys. Python's module ``random`` reseeds itself after a fork."""
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()
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
