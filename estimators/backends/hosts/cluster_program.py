"""The frame of a program that talks to a cluster for a job's supervisor, and has hosts started there.

The supervisor's side is :mod:`.cluster_client` and :mod:`.arriving`. Only the standard library is needed. Requests and
events are JSON lines:

* ``connect``: ``code`` (the ``name`` of the code that runs on hosts, and the descriptor ``fd`` of its archive), and the
  cluster's own arguments; answered by ``connected`` with ``address`` (at which hosts reach this machine), or
  ``refused`` with ``reason``;
* ``acquire``: ``hosts`` (each with ``name``, ``identity``, ``key``), the arguments of :func:`.joining.start_agent`, and
  the cluster's own ones; answered by ``pending`` with ``reason`` while room is lacking, and for a ``host`` (an
  identity) by ``placed`` with ``node`` (its machine), ``failed`` or ``ended`` with ``reason``;
* ``release``: ``host`` (an identity), ``lost`` (whether its connection has ended unexpectedly).

When its input ends, for whatever reason, the program leaves the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from typing import Any

#: Seconds for a released host to end by itself, and for leaving the cluster.
RELEASE_S, LEAVE_S = 3.0, 3.0


class ProgramHost:
    """Hold what is known of a host.

    Attributes:
        shares: The gang with which it was requested, itself included.
        released: Set when the job has given it back.
        over: Set when the worker that held its place has ended.
    """

    def __init__(self, wanted: dict[str, str]) -> None:
        self.name, self.identity, self.key = wanted["name"], wanted["identity"], wanted["key"]
        self.shares: list[Any] = [self]
        self.released = threading.Event()
        self.over = threading.Event()


class Program:
    """Serve a supervisor's requests.

    Attributes:
        hosts: The hosts that were requested and not released, by identity.
        code_name: Name of the code that runs on hosts.
        code: The code's archive.
    """

    host_type: type[ProgramHost] = ProgramHost

    def __init__(self, output: int) -> None:
        self._output = output
        self._lock = threading.Lock()
        self.hosts: dict[str, Any] = {}
        self.code_name, self.code = "", b""

    def connect(self, asked: dict[str, Any]) -> None:
        """Join the cluster, and say ``connected`` or ``refused``."""
        raise NotImplementedError

    def acquire(self, asked: dict[str, Any], hosts: list[Any]) -> None:
        """Have hosts started, and report their fate; runs in a thread of its own."""
        raise NotImplementedError

    def lost(self, host: Any) -> None:
        """Note that a host's connection has ended unexpectedly."""

    def release(self, host: Any) -> None:
        """Give a host back; runs in a thread of its own."""
        raise NotImplementedError

    def other(self, operation: str, asked: dict[str, Any]) -> None:
        """Serve a request that only this cluster knows."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Leave the cluster."""
        raise NotImplementedError

    def say(self, event: str, **values: Any) -> None:
        """Send an event to the supervisor."""
        line = json.dumps({"event": event, **values}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # nobody is listening any more
            while line:
                line = line[os.write(self._output, line) :]

    def in_thread(self, target: Any, *arguments: Any) -> None:
        """Run a function in a thread of its own."""
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def take(self, asked: dict[str, Any]) -> None:
        """Serve a request."""
        operation = asked.pop("op")
        if operation == "connect":
            self.code_name = asked["code"]["name"]
            with open(asked["code"]["fd"], "rb") as file:
                self.code = file.read()
            self.connect(asked)
        elif operation == "acquire":
            hosts = [self.host_type(wanted) for wanted in asked["hosts"]]
            for host in hosts:
                host.shares = hosts
            self.hosts.update({host.identity: host for host in hosts})
            self.in_thread(self.acquire, asked, hosts)
        elif operation == "release":
            released = self.hosts.pop(asked["host"], None)
            if released is not None:
                released.released.set()
                if asked["lost"]:
                    self.lost(released)
                self.in_thread(self.release, released)
        else:
            self.other(operation, asked)

    def leave(self) -> None:
        """Leave the cluster, and end."""
        threading.Timer(LEAVE_S, os._exit, [1]).start()
        with contextlib.suppress(Exception):
            self.disconnect()
        os._exit(0)


def serve(kind: type[Program]) -> None:
    """Serve until the input ends."""
    output = os.dup(1)
    os.dup2(2, 1)  # the client's own output must not mix with the events
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    program = kind(output)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        threading.Timer(LEAVE_S + 1.0, os._exit, [1]).start()  # also when a request hangs
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    while line := lines.get():
        program.take(json.loads(line))
    program.leave()
