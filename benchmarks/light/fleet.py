"""``python -m benchmarks.light.fleet SOCKET``: play many hosts in one process, for the provider beside this.

A light host speaks what a real one does: the frames of the host's agent, a toolkit's lines and signs of life, and the
hosts' connections to algo-1, which has the real coordinator. It has no files, and no processes: its ranks' lines come
from here. What a job shall do is in its environment, ``LIGHT``: {"lines": of each rank, "seconds": until they have
ended, "lose": the name of a host that is lost after that time}.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from container.contract import variables, wire
from container.contract.failures import Failure
from container.contract.messages import Message
from container.contract.wire import Event
from container.system.background import Background
from container.system.link import HostLink
from container.system.loop import Loop, SelectorLoop
from container.system.transfer import Transfers
from container.toolkit import control
from container.toolkit.coordinator import Coordinator

#: As a real toolkit's.
_BEAT_S = 5.0
#: How long hosts wait for each other, in seconds.
_START_TIMEOUT_S = 60.0
#: Lines that a host prints at once, as a pipe that was full would give them.
_AT_ONCE = 64


class LightHost:
    """One host, from its agent's first frame to the end of the connection.

    Args:
        loop: The loop of the process.
        background: Its thread.
        connection: To the supervisor.
    """

    def __init__(self, loop: Loop, background: Background, connection: socket.socket) -> None:
        self.loop = loop
        self._name = "?"
        self._listener: socket.socket | None = None
        self.toolkit: LightToolkit | None = None
        self._others: set[int] = set()  # agents that wait until their input ends
        descriptor = connection.detach()
        self.link = HostLink(loop, descriptor, descriptor, self)
        self._transfers = Transfers(self.link, background, Path("/tmp"))
        self.said_hello = 0.0

    def closed(self, reason: str) -> None:
        """See :class:`container.system.link.LinkHandler`."""
        if self.toolkit is not None:
            self.toolkit.close()

    def lose(self) -> None:
        """Be gone, with all connections, as a machine that was switched off."""
        self.link.close()
        self.closed("it is gone")

    def exit(self, number: int, code: int | None, signal_number: int | None = None) -> None:
        """Tell the end of a process."""
        self.link.send({"op": "exit", "id": number, "code": code, "signal": signal_number, "error": None})

    def received(self, message: Message, body: bytes) -> None:
        """See :class:`container.system.link.LinkHandler`."""
        operation, number = message["op"], message.get("id", 0)
        toolkit = self.toolkit
        match operation:
            case "ping":
                self.link.send({"op": "pong"})
            case "hello":
                self.said_hello = time.time()
                self._name = str(message["root"]).rpartition("/")[2]
                facts = {"root": message["root"], "python": "python", "python_version": "3.11.0", "cpus": 8, "gpus": 0}
                self.link.send({"op": "hello", "protocol": 1, "package": "container", "interfaces": {}, **facts})
            case "end" | "await" | "reach":
                self.link.send({"op": "done", "id": number})
            case "pull":
                self._transfers.send(number, [], follow=False)
            case "list":
                self.link.send({"op": "done", "id": number, "files": {}})
            case "listen":
                self._listener = control.listen(str(message["address"]))
                self.link.send({"op": "done", "id": number, "port": self._listener.getsockname()[1]})
            case "run" if message["argv"][-1] == "train":
                listener, self._listener = self._listener, None
                self.link.send({"op": "started", "id": number, "pid": 0})
                self.toolkit = LightToolkit(self, number, self._name, message["env"], listener)
            case "run":
                self._others.add(number)
                self.link.send({"op": "started", "id": number, "pid": 0})
            case "close" | "signal" if number in self._others:
                self._others.discard(number)
                self.exit(number, 0)
            case "signal" if toolkit is not None and toolkit.number == number:
                toolkit.signal(int(message["number"]))
            case "abort":
                for other in self._others:
                    self.exit(other, None, signal.SIGKILL)
                self._others.clear()
                if toolkit is not None:
                    toolkit.end(None, signal.SIGKILL)


class LightToolkit:
    """A host's toolkit, and what its ranks print.

    Args:
        host: The host.
        number: The process' number on the connection.
        name: The host's name in the job.
        env: What the supervisor gives it.
        listener: algo-1's.
    """

    def __init__(
        self, host: LightHost, number: int, name: str, env: dict[str, str], listener: socket.socket | None
    ) -> None:
        self.number = number
        self._host, self._loop, self._name = host, host.loop, name
        self._wanted: dict[str, Any] = json.loads(env["LIGHT"])
        self._over = False
        self._hosts = tuple(json.loads(env[variables.ADDRESSES]))
        self._attempt = int(env[variables.ATTEMPT])
        self._index = self._hosts.index(name)
        self._left = 0
        self._coordinator: Coordinator | None = None
        self._server: control.ControlServer | None = None
        self._client: control.ControlClient | None = None
        self._say("phase", name="toolkit_started")
        self._beat()
        token = env[variables.JOB_TOKEN]
        if self._index == 0:
            self._coordinator = Coordinator(self._hosts, _START_TIMEOUT_S, time.monotonic())
            if listener is not None:
                self._server = control.ControlServer(self._loop, listener, self, token=token, expected=set(self._hosts))
        else:
            address, _, port = env[variables.CONTROL_ADDRESS].rpartition(":")
            self._client = control.ControlClient(
                self._loop,
                (address, int(port)),
                self,
                hello=name,
                token=token,
                deadline=time.monotonic() + _START_TIMEOUT_S,
            )
        self._report({"op": "ready", "ports": []})

    def _print(self, data: bytes) -> None:
        self._host.link.send({"op": "output", "id": self.number}, data)

    def _say(self, kind: str, **data: Any) -> None:
        self._print(Event(kind=kind, host=self._name, attempt=self._attempt, data=data).to_line())

    def _beat(self) -> None:
        if not self._over:
            self._print(wire.HEARTBEAT)
            self._loop.call_later(_BEAT_S, self._beat)

    def _report(self, message: Message) -> None:
        if self._coordinator is not None:
            self.host_said(self._name, message)
        elif self._client is not None:
            self._client.send(message)

    def _tell_all(self, message: Message | None) -> None:
        if message is not None:
            self._loop.call_later(0.0, functools.partial(self.master_said, message))
            if self._server is not None:
                self._server.broadcast(message)

    def host_joined(self, host: str) -> None:
        """Wait for its word."""

    def host_said(self, host: str, message: Message) -> None:
        """Let algo-1's coordinator decide."""
        assert self._coordinator is not None
        self._tell_all(self._coordinator.receive(host, message, time.monotonic()))
        if self._coordinator.all_done:
            self._tell_all(self._coordinator.finish())

    def host_lost(self, host: str, reason: str) -> None:
        """Let algo-1's coordinator decide."""
        assert self._coordinator is not None
        self._tell_all(self._coordinator.lost(host, reason, time.monotonic()))

    def master_joined(self) -> None:
        """Wait for its word."""

    def master_lost(self, reason: str) -> None:
        """End with it."""
        self.end(1)

    def master_said(self, message: Message) -> None:
        """Do what algo-1 says."""
        if self._over:
            return
        match message["op"]:
            case "go":
                self._say("phase", name="light_go", hello=self._host.said_hello)
                self._left = int(self._wanted.get("lines", 0))
                self._work()
            case "stop":
                self._report({"op": "stopped"})
            case "end":
                if self._coordinator is not None:
                    self._say("failure", **Failure.from_dict(message["failure"]).to_dict())
                self.end(1)
            case "finish":
                self.end(0)

    def _work(self) -> None:
        """The ranks print."""
        if self._over:
            return
        done = int(self._wanted.get("lines", 0)) - self._left
        count = min(self._left, _AT_ONCE)
        if count:
            ranks = int(self._wanted.get("ranks", 8))
            lines = []
            for rank in range(self._index * ranks, (self._index + 1) * ranks):
                tag = wire.prefix(self._name, f"rank {rank}").encode()
                lines += [wire.encode_piece(tag, b"line %d\n" % number) for number in range(done, done + count)]
            self._print(b"".join(lines))
            self._left -= count
            self._loop.call_later(0.0, self._work)
            return
        seconds = float(self._wanted.get("seconds", 0.0))
        self._say("phase", name="light_printed")
        if self._wanted.get("lose"):
            if self._wanted["lose"] == self._name:
                self._loop.call_later(seconds, self._lose)
        else:
            self._loop.call_later(seconds, lambda: None if self._over else self._report({"op": "done"}))

    def _lose(self) -> None:
        Path(self._wanted["mark"]).write_text(f"{time.time()}", encoding="utf-8")
        self._host.lose()

    def signal(self, number: int) -> None:
        """A signal of the supervisor's."""
        if number == signal.SIGTERM:
            self._report({"op": "stop"})
        else:
            self.end(None, number)

    def end(self, code: int | None, signal_number: int | None = None) -> None:
        """Be over."""
        if not self._over:
            self.close()
            self._host.exit(self.number, code, signal_number)

    def close(self) -> None:
        """Close the connections, once what is on its way is sent."""
        self._over = True
        for side in (self._server, self._client):
            if side is not None:
                # The last word to each host is written at once where its socket takes it.
                self._loop.call_later(0.0 if side is self._client else 1.0, side.close)
        self._server = self._client = None


def main(path: str) -> None:
    """Serve until the process that started this one is gone: its end of our input closes."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = SelectorLoop()
    background = Background(loop)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(2048)
    hosts: list[LightHost] = []
    loop.add_reader(listener.fileno(), lambda: hosts.append(LightHost(loop, background, listener.accept()[0])))
    loop.add_reader(0, lambda: loop.stop() if not os.read(0, 1) else None)
    print("listening", flush=True)
    loop.run()


if __name__ == "__main__":
    main(sys.argv[1])
