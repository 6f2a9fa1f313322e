"""The frame of a program that speaks with a cluster for a job's supervisor, and has hosts started there.

The supervisor's side is :mod:`.cluster_client` and :mod:`.arriving`. It needs the standard library alone. What is asked
of it comes as JSON lines, and so do its answers:

* ``connect``: ``code`` (the ``name`` of what runs on hosts, and the descriptor ``fd`` of its archive), and what the
  cluster needs; answered by ``connected`` with ``address`` (where hosts reach this machine), or ``refused`` with
  ``reason``;
* ``acquire``: ``hosts`` (each with ``name``, ``identity``, ``key``), ``python``, ``address``, ``port``, and what the
  cluster needs; answered by ``pending`` with ``reason``, and for a host, by its identity, ``failed`` or ``ended`` with
  ``reason``;
* ``release``: ``host`` (an identity), ``lost`` (whether its connection has ended by itself).

When its input ends, however the supervisor went, it leaves the cluster.
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

#: How long a host may take to end by itself when it is released, and the cluster to be left, in seconds.
RELEASE_S, LEAVE_S = 3.0, 3.0


class Host:
    """A host of the job.

    Attributes:
        shares: The hosts that came together with it, and itself.
        released: Whether it is not needed any more.
        over: Whether what held its place has ended.
    """

    def __init__(self, wanted: dict[str, str]) -> None:
        self.name, self.identity, self.key = wanted["name"], wanted["identity"], wanted["key"]
        self.shares: list[Any] = [self]
        self.released = threading.Event()
        self.over = threading.Event()


class Program:
    """What is asked of a cluster, and its answers.

    Attributes:
        hosts: Those that have been asked for and not been released, by identity.
        code_name: Of the code that runs on hosts.
        code: Its archive.
    """

    host_type: type[Host] = Host

    def __init__(self, output: int) -> None:
        self._output = output
        self._lock = threading.Lock()
        self.hosts: dict[str, Any] = {}
        self.code_name, self.code = "", b""

    def connect(self, asked: dict[str, Any]) -> None:
        """Join the cluster."""
        raise NotImplementedError

    def acquire(self, asked: dict[str, Any], hosts: list[Any]) -> None:
        """Have hosts started, and tell what becomes of them."""
        raise NotImplementedError

    def release(self, host: Any, lost: bool) -> None:
        """Begin to give a host back."""
        raise NotImplementedError

    def other(self, operation: str, asked: dict[str, Any]) -> None:
        """Do what only this cluster is asked for."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Leave the cluster."""
        raise NotImplementedError

    def say(self, event: str, **values: Any) -> None:
        """Tell the supervisor."""
        line = json.dumps({"event": event, **values}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # nobody hears it any more
            while line:
                line = line[os.write(self._output, line) :]

    def begin(self, target: Any, *arguments: Any) -> None:
        """Run something without holding up what follows."""
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def take(self, asked: dict[str, Any]) -> None:
        """Do what is asked."""
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
            self.begin(self.acquire, asked, hosts)
        elif operation == "release":
            released = self.hosts.pop(asked["host"], None)
            if released is not None:
                released.released.set()
                self.release(released, asked["lost"])
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
    os.dup2(2, 1)  # what the cluster's client prints must not get among the answers
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    program = kind(output)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        threading.Timer(LEAVE_S + 1.0, os._exit, [1]).start()  # also when the cluster holds up what is asked
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    while line := lines.get():
        program.take(json.loads(line))
    program.leave()
