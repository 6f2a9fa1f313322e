"""Implement what the programs for Ray and Spark share. Each program starts hosts on a cluster for a job's supervisor.

:mod:`.cluster_client` and :mod:`.arriving` are the supervisor's side. This module needs only the standard library. The
supervisor sends requests, and the program answers with events. Both are JSON lines. Each request is listed with its
arguments and the events that follow:

* ``connect`` with ``code`` and the arguments that are specific to the kind of cluster. ``code`` has the ``name`` of the
  code that runs on hosts, and the file descriptor ``fd`` of the code's archive. The event is ``connected`` with
  ``address``, the address at which hosts reach this machine. If connecting fails, the event is ``refused`` with
  ``reason``.
* ``acquire`` with ``hosts``, the arguments of :func:`.joining.start_agent`, and the arguments that are specific to the
  kind of cluster. Each of the ``hosts`` has ``name``, ``identity`` and ``key``. While the cluster has no free
  resources, the event is ``pending`` with ``reason``. The other events have ``host`` (an identity): ``placed`` with
  ``node`` (the host's machine), and ``failed`` or ``ended`` with ``reason``.
* ``release`` with ``host`` (an identity) and ``lost``, which is true if the host's connection has ended unexpectedly.

When the program's standard input ends, for example because the supervisor was killed, the program disconnects from the
cluster and exits.
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

#: Seconds that a released host has to end by itself, and that the program has to disconnect from the cluster.
RELEASE_S, LEAVE_S = 3.0, 3.0


class ProgramHost:
    """A host that the supervisor has requested.

    Attributes:
        shares: All hosts that were requested together, including this host.
        released: An event that is set when the job has released the host.
        over: An event that is set when the worker or task that runs the host's agent has ended.
    """

    def __init__(self, wanted: dict[str, str]) -> None:
        self.name, self.identity, self.key = wanted["name"], wanted["identity"], wanted["key"]
        self.shares: list[Any] = [self]
        self.released = threading.Event()
        self.over = threading.Event()


class Program:
    """A base class of programs that execute a supervisor's requests to a cluster.

    Attributes:
        hosts: The hosts that were requested and not released, by identity.
        code_name: The name of the code that runs on hosts.
        code: The archive of the code that runs on hosts.
    """

    host_type: type[ProgramHost] = ProgramHost

    def __init__(self, output: int) -> None:
        self._output = output
        self._lock = threading.Lock()
        self.hosts: dict[str, Any] = {}
        self.code_name, self.code = "", b""

    def connect(self, asked: dict[str, Any]) -> None:
        """Connect to the cluster, and send the event ``connected`` or ``refused``."""
        raise NotImplementedError

    def acquire(self, asked: dict[str, Any], hosts: list[Any]) -> None:
        """Start hosts, and report each host's state as events. This method is called in a separate thread."""
        raise NotImplementedError

    def lost(self, host: Any) -> None:
        """Handle the unexpected end of a host's connection."""

    def release(self, host: Any) -> None:
        """Release a host on the cluster. This method is called in a separate thread."""
        raise NotImplementedError

    def other(self, operation: str, asked: dict[str, Any]) -> None:
        """Handle a request that is specific to this kind of cluster."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Disconnect from the cluster."""
        raise NotImplementedError

    def say(self, event: str, **values: Any) -> None:
        """Send an event to the supervisor."""
        line = json.dumps({"event": event, **values}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # the supervisor does not read any more
            while line:
                line = line[os.write(self._output, line) :]

    def in_thread(self, target: Any, *arguments: Any) -> None:
        """Run a function in a new thread."""
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def take(self, asked: dict[str, Any]) -> None:
        """Handle a request."""
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
        """Disconnect from the cluster, and exit."""
        threading.Timer(LEAVE_S, os._exit, [1]).start()
        with contextlib.suppress(Exception):
            self.disconnect()
        os._exit(0)


def serve(kind: type[Program]) -> None:
    """Handle requests until the standard input ends, then disconnect from the cluster and exit.

    Args:
        kind: The class of the program.
    """
    output = os.dup(1)
    os.dup2(2, 1)  # output of the cluster's client library must not mix with the events
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
