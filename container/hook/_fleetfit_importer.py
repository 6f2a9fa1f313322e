"""A machine's importer: a Python that has imported what a script will import, and is forked for each of its ranks.

A toolkit starts the rank's own command, ``python train.py …``, with :data:`VARIABLE` in its environment. While the
interpreter starts, ``sitecustomize`` beside this file calls :func:`serve`, which imports what the toolkit has read from
the script's source. Then it serves *hosts*: for each toolkit that asks (:mod:`container.toolkit.importer.client`) it
forks a process, the host's own importer, which has the host's folder and command, ends with its toolkit, and takes
everything below it along. That one forks a process for every rank wrapper that asks. The importer itself never leaves
:func:`serve`; a rank returns from it, and the interpreter goes on to run the script as it would have: the same command
line, ``__main__``, traceback, exit functions and exit code.

It lives as long as those for whom it was started, the supervisors or agents above the toolkits, and where they want
that, a while longer: the next job finds it. No host is forked from one that has imported what was changed since.

What could tell the difference is looked for, and then there is no importer, or this one rank is not forked from it:
see ``_fleetfit_imports.py``.

It runs under the toolkit's own interpreter only. Nothing of ours can be imported here, but what lies beside it.
"""

import contextlib
import gc
import json
import os
import select
import socket
import sys
import time

import _fleetfit_command  # type: ignore[import-not-found]
import _fleetfit_hosts as hosts  # type: ignore[import-not-found]
import _fleetfit_imports as imports  # type: ignore[import-not-found]
import _fleetfit_ranks as ranks  # type: ignore[import-not-found]

#: Where the toolkit says that this process is to be the importer: ``LISTENER:REQUEST``, two descriptors. The request
#: is JSON, and that of a host: ``argv``, ``cwd``, ``environment``, ``traits``; ``settings`` ([[name, value, whether
#: only if it is not set], …]), ``statements`` (imports), ``on_use`` (modules that these import when they are used),
#: ``names`` (modules of the project's), ``code`` (its folder),
#: and ``servers``, the command of parameter servers, empty where there are none; ``keep``, how many seconds the
#: importer stays when nobody needs it, ``place``, the file of its socket, ``keep_with``, the process with which it ends
#: before that (0 for none), and ``holder``, whom it serves until then, a pid.
VARIABLE = "FLEETFIT_IMPORTER"  # container.contract.variables.IMPORTER

#: What of the machine's memory must be left for others, or a kept importer goes.
_SPARE_MEMORY = 0.1

#: The environment that this interpreter was started with, as far as a rank is to have it.
_AT_START = {name: value for name, value in os.environ.items() if name != VARIABLE}


def serve():  # type: ignore[no-untyped-def]
    """Import, and fork hosts and ranks until nobody needs this process any more.

    Returns:
        The ``fd:inode`` for events, in a process that is to go on as a rank, and what to do before the script is run.
        The importer never returns.
    """
    forked = False
    importer = None
    try:
        fd, _, request_fd = os.environ.pop(VARIABLE).partition(":")
        with os.fdopen(int(request_fd), "rb") as file:
            request = json.loads(file.read())
        importer = _Importer(socket.socket(fileno=int(fd)), request)
        importer.load()
        host = importer.run()  # returns in a fork, the importer of a host
        forked = True
        importer = None
        rank, passed, server = host.run()  # returns in a rank
        return ranks.become(rank, passed, host, server=server), host.surroundings.hide
    except BaseException as error:  # noqa: BLE001 - this process must not go on to run the script
        if importer is not None:
            importer.remove_place()
            unfit = isinstance(error, imports.Unfit)
            importer.tell({"unfit": str(error) if unfit else f"{type(error).__name__}: {error}"})
        elif forked:
            os.write(2, f"the process that was forked for this rank failed: {error!r}\n".encode())
    os._exit(1)


class _Caller:
    """A toolkit's connection."""

    def __init__(self, sock):  # type: ignore[no-untyped-def]
        self.socket = sock

    def send(self, message) -> None:  # type: ignore[no-untyped-def]
        with contextlib.suppress(OSError):  # it is gone, which is noticed when it is read
            self.socket.sendall(json.dumps(message).encode() + b"\n")


class _Importer:
    """Imports, and forks the importers of hosts.

    Args:
        listener: Where toolkits connect.
        request: What the first of them has asked for.
    """

    def __init__(self, listener, request):  # type: ignore[no-untyped-def]
        self._listener = listener
        self._listener.setblocking(False)
        self._plan = request
        self._place = request["place"]
        self._is_place = imports.identity(self._place)
        self._callers = {}  # by descriptor
        self._hosts = {}  # by the descriptor of the process -> its pid
        self._holders = {}  # pid -> descriptor of the process
        self._keep = 0.0
        self._with = 0, -1  # a process, and its descriptor
        self._until = 0.0
        self._retired = False
        self._poll = select.poll()
        self._modules: frozenset[str] = frozenset()
        self._files = {}
        self._packages = sorted({text.split()[1] for text in request["statements"]})
        self._seconds = 0.0

    def tell(self, message) -> None:  # type: ignore[no-untyped-def]
        """Tell all toolkits that wait."""
        self._accept()
        for caller in self._callers.values():
            caller.send(message)

    def load(self) -> None:
        """Import.

        Raises:
            Unfit: what was imported is not to be forked.
        """
        began = time.monotonic()
        self._surroundings, tops = imports.do(
            self._plan, _AT_START, self.tell, lambda: {self._listener.fileno(), *self._callers}
        )
        self._modules = frozenset(tops | {name.partition(".")[0] for name in sys.modules})
        self._files = imports.read_files(self._plan["code"])
        try:
            self._configuration = _fleetfit_command.Configuration()
        except _fleetfit_command.NoPlace:
            self._configuration = None
        self._seconds = round(time.monotonic() - began, 3)
        os.chdir("/")  # the folder is its job's, which may be removed
        del self._plan["environment"]
        _AT_START.clear()
        # Until here it ended with the toolkit that has started it. Its forks' orphans are this process's to end.
        hosts.end_with_parent(0)
        hosts.adopt()

    def run(self):  # type: ignore[no-untyped-def]
        """Serve toolkits.

        Returns:
            In a fork: the importer of a host. Here, never.
        """
        gc.freeze()  # or collections in ranks would write to pages that they share
        self._until = time.monotonic() + hosts.END_S  # the first one has connected, or is gone
        self._poll.register(self._listener, select.POLLIN)
        self._accept()
        while True:
            wait = self._wait()
            if wait == 0.0:
                self.remove_place()
                os._exit(0)
            for fd, _ in self._poll.poll(None if wait is None else wait * 1000):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._hosts:
                    self._host_ended(fd)
                elif fd in self._callers:
                    host = self._read(fd)
                    if host is not None:
                        return host
                else:
                    self._holder_ended(fd)

    def _wait(self):  # type: ignore[no-untyped-def]
        """How long to wait, in seconds: None for ever, 0 if this process has come to its end."""
        if self._hosts or (self._holders and not self._retired):
            return None
        left = self._until - time.monotonic()
        if self._retired or left <= 0.0 or _memory_is_short() or imports.identity(self._place) != self._is_place:
            return 0.0
        return min(left, hosts.LOOK_S)

    def remove_place(self) -> None:
        """Nobody can connect any more."""
        if imports.identity(self._place) == self._is_place:
            for path in (self._place, self._place + ".json"):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            with contextlib.suppress(OSError):  # others' are there
                os.rmdir(os.path.dirname(self._place))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # there is none, it is gone, or there are no descriptors left
                return
            self._callers[sock.fileno()] = _Caller(sock)
            self._poll.register(sock, select.POLLIN)

    def _read(self, fd):  # type: ignore[no-untyped-def]
        """Take a toolkit's request, which is one message with its descriptors."""
        caller = self._callers[fd]
        try:
            data, passed, _, _ = socket.recv_fds(caller.socket, hosts.READ_SIZE, hosts.DESCRIPTORS)
        except OSError:
            data, passed = b"", []
        host = None
        try:
            if len(passed) == hosts.DESCRIPTORS and data:
                host = self._serve(caller, *passed)
        finally:
            if host is None:
                self._poll.unregister(fd)
                del self._callers[fd]
                caller.socket.close()
                for one in passed:
                    os.close(one)
        return host

    def _serve(self, caller, request_fd, listener, holder):  # type: ignore[no-untyped-def]
        """Fork the importer of a host; returned there."""
        with os.fdopen(os.dup(request_fd), "rb") as file:
            request = json.loads(file.read())
        why = self._refusal(request)
        pid = -1
        if why is None:
            try:
                pid = hosts.fork()
            except OSError as error:
                why = f"no process could be forked: {error.strerror}"
        if why is not None:
            self._retired = True  # another one takes its place
            caller.send({"op": "refused", "why": why})
            return None
        if pid == 0:
            self._listener.close()
            for other in self._callers.values():
                if other is not caller:
                    other.socket.close()
            for fd in (*self._hosts, *self._holders.values(), request_fd, holder, self._with[1]):
                if fd >= 0:
                    os.close(fd)
            self._callers = {caller.socket.fileno(): caller}
            # Said here, since this process may have forked a rank, which has ended, before its parent comes to it.
            caller.send({"imported": self._packages, "seconds": self._seconds})
            caller.send({"op": "hosting", "pid": os.getpid()})
            return hosts.Host(caller, socket.socket(fileno=listener), request, self._surroundings, self._configuration)
        process = os.pidfd_open(pid)
        self._hosts[process] = pid
        self._poll.register(process, select.POLLIN)
        if request["holder"] not in self._holders:
            held = self._holders[request["holder"]] = os.dup(holder)
            self._poll.register(held, select.POLLIN)
        self._keep = request["keep"]
        self._keep_with(request["keep_with"])
        if self._keep:
            home = {name: os.environ[name] for name in ("FLEETFIT_HOME",) if name in os.environ}
            _fleetfit_command.show(["fleetfit-importer", *self._packages], {**home, VARIABLE: self._place})
        self._note(None)
        self._seconds = 0.0  # others have not waited for it
        return None

    def _refusal(self, request):  # type: ignore[no-untyped-def]
        if any(request[name] != self._plan[name] for name in ("statements", "on_use", "settings")):
            return "its imports differ"
        if clash := sorted(self._modules.intersection(request["names"])):
            return f"its folder has a module {clash[0]}"
        if self._configuration is None and (request["argv"], request["cwd"]) != (self._plan["argv"], self._plan["cwd"]):
            return "its command differs"
        if request["argv"][0] != sys.orig_argv[0]:
            return "its Python differs"
        if {**hosts.traits(), "cwd": ""} != {**request["traits"], "cwd": ""}:
            return "its cores, priority, user, control groups or namespaces differ"
        for file, identity in self._files.items():
            if imports.identity(file) != identity:
                return f"{file} was changed"
        return self._surroundings.refusal(request["environment"], request["code"])

    def _host_ended(self, fd) -> None:  # type: ignore[no-untyped-def]
        pid = self._hosts.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        if status != 0:  # it could not see to what it had started, or its toolkit was killed
            hosts.end_children(self._hosts.values())
            self._keep = 0.0
        self._until = time.monotonic() + self._keep
        if not self._hosts:
            self._note(time.time() + self._keep)

    def _keep_with(self, pid) -> None:  # type: ignore[no-untyped-def]
        """Be kept no longer than a process runs, if that is wanted."""
        if self._with[0] == pid:
            return
        if self._with[1] >= 0:
            self._poll.unregister(self._with[1])
            os.close(self._with[1])
        self._with = pid, -1
        if pid:
            try:
                fd = os.pidfd_open(pid)
            except OSError:  # it is gone
                self._keep = 0.0
            else:
                self._with = pid, fd
                self._poll.register(fd, select.POLLIN)

    def _holder_ended(self, fd) -> None:  # type: ignore[no-untyped-def]
        if fd == self._with[1]:
            self._with = 0, -1
            self._keep = self._until = 0.0
        self._poll.unregister(fd)
        os.close(fd)
        self._holders = {pid: held for pid, held in self._holders.items() if held != fd}

    def _note(self, until) -> None:  # type: ignore[no-untyped-def]
        """Write down who this is, for those who look for what is kept."""
        facts = {"pid": os.getpid(), "packages": self._packages, "until": until, "keep": self._keep}
        with contextlib.suppress(OSError):
            if imports.identity(self._place) == self._is_place:
                with open(f"{self._place}.new", "w") as file:
                    json.dump(facts, file)
                os.replace(f"{self._place}.new", f"{self._place}.json")


def _memory_is_short() -> bool:
    """Whether what is left of the machine's memory is needed by others more than an importer that is kept."""
    sizes = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                sizes[name] = int(rest.split()[0])
    return sizes.get("MemAvailable", 1) < _SPARE_MEMORY * sizes.get("MemTotal", 0)
