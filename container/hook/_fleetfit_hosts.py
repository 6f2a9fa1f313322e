"""A host's own importer: a fork of the machine's, which forks the host's ranks and ends with its toolkit.

See ``_fleetfit_importer.py``. Nothing of ours can be imported here, but what lies beside it.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import warnings

import _fleetfit_command  # type: ignore[import-not-found]
from _fleetfit_imports import SERVERS_SETTINGS  # type: ignore[import-not-found]

READ_SIZE = 1 << 16
DESCRIPTORS = 3
_REQUEST_LIMIT = 64 << 20
#: How often it is looked whether the machine has memory to spare, and for orphans that have ended, in seconds.
LOOK_S = 1.0
#: How long what is killed may take to go, in seconds.
END_S = 2.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)


class _Rank:
    """A wrapper's connection, and the process that was forked for it."""

    def __init__(self, sock):  # type: ignore[no-untyped-def]
        self.socket = sock
        self.buffer = b""
        self.passed = []
        self.pid = 0

    def send(self, message):  # type: ignore[no-untyped-def]
        with contextlib.suppress(OSError):  # it is gone, which is noticed when it is read
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self):  # type: ignore[no-untyped-def]
        for fd in self.passed:
            os.close(fd)
        self.socket.close()


class Host:
    """Takes requests of a host's wrappers, for as long as its toolkit wants.

    Args:
        toolkit: The toolkit's connection.
        listener: Where wrappers connect.
        request: The toolkit's.
        surroundings: What :func:`_fleetfit_imports.do` returned.
        configuration: The interpreter's; None if it is not known where it lies.
    """

    def __init__(self, toolkit, listener, request, surroundings, configuration):  # type: ignore[no-untyped-def]
        self._toolkit = toolkit
        self._listener = listener
        self._argv = request["argv"]
        self._servers = request["servers"]
        self.code = request["code"]
        self.surroundings = surroundings
        self.configuration = configuration
        self._ranks = {}
        self._poll = select.poll()
        adopt()
        os.setsid()
        os.chdir(request["cwd"])
        os.environ["PWD"] = request["cwd"]
        _fleetfit_command.show(self._argv, {**request["environment"], "FLEETFIT_IMPORTER": "host"})

    def run(self):  # type: ignore[no-untyped-def]
        """Fork a rank for each request that can be met.

        Returns:
            In a forked process: its request, the descriptors that came with it, and whether it is a server.
        """
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._toolkit.socket, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll(LOOK_S * 1000 if self._reap() else None):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == self._toolkit.socket.fileno():
                    self._end()
                else:
                    request = self._read(fd)
                    if request is not None:
                        return request

    def _reap(self) -> bool:
        """Collect orphans of ranks that have ended; returns whether there are others."""
        ranks = {rank.pid for rank in self._ranks.values()}
        there = False
        for pid in _children():
            if pid not in ranks:
                with contextlib.suppress(ChildProcessError):
                    there = os.waitpid(pid, os.WNOHANG)[0] == 0 or there
        return there

    def _end(self) -> None:
        """The toolkit wants no more of this, or is gone: with this process goes all that it has started."""
        try:
            orderly = b'"end"' in self._toolkit.socket.recv(READ_SIZE)
        except OSError:
            orderly = False
        end_children()
        os._exit(0 if orderly else 1)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # whoever it was is gone, or there are no descriptors left
            return
        self._ranks[sock.fileno()] = _Rank(sock)
        self._poll.register(sock, select.POLLIN)

    def _read(self, fd):  # type: ignore[no-untyped-def]
        rank = self._ranks[fd]
        try:
            data, passed, _, _ = socket.recv_fds(rank.socket, READ_SIZE, DESCRIPTORS)
        except OSError:
            data, passed = b"", []
        rank.passed += passed
        rank.buffer += data
        if not data or len(rank.buffer) > _REQUEST_LIMIT:
            self._gone(fd)
            return None
        while b"\n" in rank.buffer:
            line, _, rank.buffer = rank.buffer.partition(b"\n")
            message = json.loads(line)
            if message["op"] == "fork" and not rank.pid:
                if self._fork(rank, message):
                    return message, self._leave(rank), message["argv"] == self._servers
            elif message["op"] == "reap" and rank.pid:
                _, status, usage = os.wait4(rank.pid, 0)
                rank.pid = 0
                rank.send({"op": "reaped", "status": status, "max_rss_kb": usage.ru_maxrss})
        return None

    def _gone(self, fd):  # type: ignore[no-untyped-def]
        """The wrapper is gone; its command goes with it."""
        rank = self._ranks.pop(fd)
        self._poll.unregister(fd)
        if rank.pid:
            os.kill(rank.pid, signal.SIGKILL)
            os.waitpid(rank.pid, os.WNOHANG)  # one that waits for a disk would hold up the other ranks
        rank.close()

    def _fork(self, rank, request):  # type: ignore[no-untyped-def]
        """Returns whether this is the forked process."""
        importer = os.getpid()
        pid = -1
        why = self._refusal(request)
        if why is None:
            try:
                pid = fork()
            except OSError as error:
                why = f"no process could be forked: {error.strerror}"
        if why is not None:
            self._toolkit.send({"refused": why})
            rank.send({"op": "refused"})
            return False
        if pid == 0:
            end_with_parent(signal.SIGKILL)
            if os.getppid() != importer:
                os.kill(os.getpid(), signal.SIGKILL)
            return True
        rank.pid = pid
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here as well: who is told of it may signal its group at once
        rank.send({"op": "forked", "pid": pid})
        for fd in rank.passed:
            os.close(fd)
        rank.passed = []
        return False

    def _leave(self, rank):  # type: ignore[no-untyped-def]
        """In a forked process: keep nothing of the server's but the descriptors that came with the request."""
        passed, rank.passed = rank.passed, []
        for other in self._ranks.values():
            other.close()
        self._listener.close()
        self._toolkit.socket.close()
        return passed

    def _refusal(self, request):  # type: ignore[no-untyped-def]
        if request["argv"] == self._servers:
            return self._refusal_of_server(request)
        if request["argv"] != self._argv:
            return "its command differs"
        if request["traits"] != traits():
            return "its folder, cores, priority, user, control groups or namespaces differ"
        for number, _, most in request["limits"]:
            mine = resource.getrlimit(number)[1]
            if mine != most and mine != resource.RLIM_INFINITY and not 0 <= most <= mine:
                return "its resource limits are higher"
        return self.surroundings.refusal(request["environment"], self.code)

    def _refusal_of_server(self, request):  # type: ignore[no-untyped-def]
        """A server runs none of the script's code, nor with its settings: these have to be the server's own."""
        environment = request["environment"]
        for name, value in SERVERS_SETTINGS.items():
            if self.surroundings.set.get(name) != environment.get(name, value):
                return f"{name} differs for servers"
        found = getattr(sys.modules.get("tensorflow"), "__file__", None) or ""
        if not found or os.path.dirname(os.path.dirname(found)) in python_path(environment):  # which servers ignore
            return "servers may import a different TensorFlow"
        return self.surroundings.refusal(environment, self.code)


def python_path(environment):  # type: ignore[no-untyped-def]
    return [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


def traits():  # type: ignore[no-untyped-def]
    """What a process has from its parent that a fork of the importer could not take over."""
    with open("/proc/self/cgroup") as file:
        groups = file.read()
    return {
        "cwd": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "users": [*os.getresuid(), *os.getresgid()],
        "groups": groups,
        "namespaces": [os.readlink(f"/proc/self/ns/{kind}") for kind in ("ipc", "mnt", "net", "pid", "user", "uts")],
    }


def fork():  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def adopt() -> None:
    """Have the orphans of what this process starts become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number) -> None:  # type: ignore[no-untyped-def]
    """Have this process get a signal when its parent ends; 0 for none."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option, value) -> None:  # type: ignore[no-untyped-def]
    _libc.prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


def _children():  # type: ignore[no-untyped-def]
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def end_children(spared=()) -> None:  # type: ignore[no-untyped-def]
    """Kill all children but some, and what becomes a child by that."""
    until = time.monotonic() + END_S
    while left := [pid for pid in _children() if pid not in spared]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:
            return
        time.sleep(0.0005)
