"""Serve requests over a unix socket: fork a process for each request. Clients pass file descriptors with a request."""

from __future__ import annotations

import abc
import contextlib
import json
import os
import resource
import select
import signal
import socket
from collections.abc import Mapping
from typing import Any

from container.system import forking, processes

_MOST_DESCRIPTORS = 4


def send(sock: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message to a client. Ignore the error if the client has ended."""
    with contextlib.suppress(OSError):  # the server notices that the client has ended when it reads the connection
        sock.sendall(json.dumps(message).encode() + b"\n")


def decoded(data: bytes) -> dict[str, Any]:
    """Return the message in a client's data. Return an empty dict if the data is not a message."""
    with contextlib.suppress(ValueError):
        if isinstance(message := json.loads(data), dict):
            return message
    return {}


class ForkServer(abc.ABC):
    """A process that forks for each request that it receives.

    Args:
        listener: The listening socket to which clients connect.
        name: The name of this process in ps and top.
    """

    def __init__(self, listener: socket.socket, name: str) -> None:
        processes.set_name(name)
        listener.setblocking(False)
        self._listener = listener
        self.peers: dict[int, socket.socket] = {}  # by descriptor
        self._forked: dict[int, socket.socket] = {}  # pid of a forked process -> connection of the client that asked
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def run(self) -> dict[str, Any]:
        """Serve requests. This method returns only in a forked process.

        Returns:
            The request for which this process was forked.
        """
        processes.become_subreaper()
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._poll.register(read, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll(self._patience()):
                if fd == read:
                    os.read(read, 1 << 16)
                    with contextlib.suppress(ChildProcessError):
                        while (ended := os.wait4(-1, os.WNOHANG))[0]:
                            self._ended(*ended)
                elif fd == self._listener.fileno():
                    self.accept()
                elif fd in self.peers and (request := self._read(self.peers[fd])) is not None:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(read)
                    os.close(write)
                    return request

    def accept(self) -> None:
        """Accept all waiting connections."""
        with contextlib.suppress(OSError):  # no more connections, or no descriptors left
            while True:
                sock = self._listener.accept()[0]
                self.peers[sock.fileno()] = sock
                self._poll.register(sock, select.POLLIN)

    @property
    def descriptors(self) -> set[int]:
        """Return the descriptors of the listening socket and of the connections to clients."""
        return {self._listener.fileno(), *self.peers}

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message to all clients that have connected."""
        self.accept()
        for sock in self.peers.values():
            send(sock, message)

    def drop(self, sock: socket.socket) -> None:
        """Close the connection to a client."""
        self._poll.unregister(sock)
        del self.peers[sock.fileno()]
        sock.close()

    def _read(self, sock: socket.socket) -> dict[str, Any] | None:
        data, passed = b"", list[int]()
        with contextlib.suppress(OSError):
            data, passed, _, _ = socket.recv_fds(sock, 1 << 16, _MOST_DESCRIPTORS)
        if not passed:
            self._hung_up(sock, data)
            return None
        with open(passed.pop(0), "rb") as file:
            request: dict[str, Any] = {**json.load(file), "passed": passed}
        pid, why = -1, None
        with contextlib.suppress(OSError):  # the client has ended, or there are too many processes
            why = self._refusal(request)
            pid = -1 if why else forking.fork()
        if pid == 0:
            for other in (self._listener, *self.peers.values()):
                if other is not sock:
                    other.close()
            return {**request, "peer": sock}
        self._answer(sock, request, pid, why or "no process could be forked")
        for fd in passed:
            os.close(fd)
        return None

    def _patience(self) -> float | None:
        """Return the longest time to wait for requests, in milliseconds. Return None for no limit."""
        return None

    def _hung_up(self, sock: socket.socket, data: bytes) -> None:
        """Kill the process that was forked for a client, and close the connection to the client.

        This method is called when the client has closed the connection, or has sent data without descriptors.

        Args:
            sock: The connection to the client.
            data: The data that the client has sent. Empty if the client has closed the connection.
        """
        for pid in [pid for pid, asked in self._forked.items() if asked is sock]:
            os.kill(pid, signal.SIGKILL)
        self.drop(sock)

    @abc.abstractmethod
    def _refusal(self, request: Mapping[str, Any]) -> str | None:
        """Return the reason why a request is refused. Return None if the request is granted."""

    def _answer(self, sock: socket.socket, request: Mapping[str, Any], pid: int, why: str) -> None:
        """Tell a client that a process was forked for its request, or close the connection if no process was forked.

        Args:
            sock: The connection to the client.
            request: The client's request.
            pid: The pid of the forked process; -1 if no process was forked.
            why: The reason why no process was forked.
        """
        if pid < 0:
            self.drop(sock)
            return
        self._forked[pid] = sock
        send(sock, {"op": "forked", "pid": pid})

    def _ended(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        """Tell a client that the process forked for its request has ended. Ignore the end of other processes.

        Args:
            pid: The pid of the process, which may also be an adopted process.
            status: The wait status of the process.
            usage: The resources that the process has used.
        """
        if sock := self._forked.pop(pid, None):
            send(sock, {"op": "ended", "status": status, "max_rss_kb": usage.ru_maxrss})
