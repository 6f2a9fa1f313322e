"""A host at the other end of a connection to ``python -m container agent host`` there."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from container.contract.messages import Message
from container.system import folders
from container.system.background import Background
from container.system.link import Link
from container.system.loop import Loop
from container.system.transfer import Transfers
from estimators.backends.hosts.provider import Done, HostProcess, MachineFacts, ProcessEnd

#: What both ends must agree in: :data:`container.agent.resident.PROTOCOL`.
PROTOCOL = 1
#: How often each end shows that it is there, and after how long a silent one is gone, in seconds.
BEAT_S = 2.0
SILENCE_S = 15.0


class RemoteHost:
    """A host, by the connection to its agent; see :class:`estimators.backends.hosts.provider.Host`.

    Args:
        loop: The supervisor's loop.
        name: Its name in the job.
        read: The descriptor from which the agent's frames come; the host owns it.
        write: The one to which ours go.
        root: The job's folder there; a relative one is in its folder for temporary files.
        address: Where the other hosts reach it.
        caller_address: Where it reaches this machine.
        interface: Its network interface to the other hosts; "": the one that has the address.
        ready: Called with the host when its agent has answered.
        failed: Called with the reason when it does not.
        silence: After how many seconds without a sign of life either end is gone.
        on_signal: Called when the agent gets a signal, which it does not end by then: where such signals announce
            that the host will be taken.
    """

    def __init__(
        self,
        loop: Loop,
        name: str,
        read: int,
        write: int,
        *,
        root: str,
        address: str,
        caller_address: str,
        interface: str,
        ready: Callable[[RemoteHost], None],
        failed: Callable[[str], None],
        silence: float = SILENCE_S,
        on_signal: Callable[[int], None] | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.caller_address = caller_address
        self.interface = interface
        self.facts = MachineFacts(root=root, python="python", python_version="", package="container")
        self.on_lost: Callable[[str], None] = failed
        self.on_notice: Callable[[float], None] = lambda seconds: None
        self._on_signal = on_signal
        self._loop = loop
        self._ready: Callable[[RemoteHost], None] | None = ready
        self._silence = silence
        self._heard = time.monotonic()
        self._numbers = itertools.count(1)
        self._processes: dict[int, _Process] = {}
        self._answers: dict[int, Callable[[Message], None]] = {}
        self._link = Link(loop, read, write, self._received, self._lost)
        self._transfers = Transfers(loop, self._link, Background.of(loop), lambda: Path(folders.root()))
        self._link.send({"op": "hello", "root": root, "silence": silence, "signals": on_signal is not None})
        self._beat()

    def _beat(self) -> None:
        if not self._link.open:
            return
        if time.monotonic() - self._heard > self._silence:
            self.close()
            self._lost(f"it has given no sign of life for {self._silence:g} s")
            return
        self._link.send({"op": "ping"})
        self._loop.call_later(min(BEAT_S, self._silence / 5), self._beat)

    def _lost(self, reason: str) -> None:
        self._answers.clear()
        self._processes.clear()
        self.on_lost(reason)

    def close(self) -> None:
        """Close the connection, at whose end everything of the job ends there."""
        self._link.close()

    # --- what it says ---

    def _received(self, message: Message, body: bytes) -> None:
        self._heard = time.monotonic()
        operation, number = message["op"], message.get("id", 0)
        if operation == "output":
            if (process := self._processes.get(number)) is not None:
                (process.on_errors if message.get("errors") else process.on_output)(body)
        elif operation == "exit":
            if (process := self._processes.pop(number, None)) is not None:
                end = ProcessEnd(
                    exit_code=message.get("code"), signal=message.get("signal"), error=message.get("error")
                )
                process.on_exit(end)
        elif operation == "done":
            if (answer := self._answers.pop(number, None)) is not None:
                answer(message)
            elif (process := self._processes.pop(number, None)) is not None:
                process.on_exit(ProcessEnd(error=str(message.get("error"))))
        elif operation == "data":
            self._transfers.data(number, body)
        elif operation == "end":
            self._transfers.end(number, message.get("error"))
        elif operation == "signal" and self._on_signal is not None:
            self._on_signal(int(message["number"]))
        elif operation == "hello" and self._ready is not None:
            ready, self._ready = self._ready, None
            if message.get("protocol") != PROTOCOL:
                self._link.close()
                self._lost("the host has another version of fleetfit; install this machine's version on the host")
                return
            known = {field: message[field] for field in MachineFacts.__dataclass_fields__ if field in message}
            self.facts = MachineFacts(**known)
            self.interface = self.interface or self.facts.interface_of(self.address) or ""
            ready(self)

    # --- what is asked of it ---

    def _ask(self, operation: str, answer: Callable[[Message], None], **values: Any) -> int:
        number = next(self._numbers)
        self._answers[number] = answer
        self._link.send({"op": operation, "id": number, **values})
        return number

    def push(self, source: Path, target: str, done: Done, *, follow: bool = True) -> None:
        """Copy a file or what is in a folder into a folder of the host's; see :meth:`Host.push`."""
        number = self._ask("push", lambda message: done(message.get("error")), target=target)
        self._transfers.send(number, [(source, "")], follow=follow)

    def pull(self, source: str, target: Path, done: Done) -> None:
        """Copy what is in a folder of the host's into one here."""
        number = next(self._numbers)
        self._answers[number] = lambda message: done(message.get("error"))  # what it says if it cannot
        self._transfers.expect(number, target, lambda error: done(error) if self._answers.pop(number, None) else None)
        self._link.send({"op": "pull", "id": number, "source": source})

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Callable[[bytes], None],
        on_exit: Callable[[ProcessEnd], None],
        *,
        lifeline: str | None = None,
        listener: str | None = None,
        runtime: str | None = None,
        session: bool = False,
        tidies: bool = False,
        on_errors: Callable[[bytes], None] | None = None,
    ) -> HostProcess:
        """Run a process there."""
        number = next(self._numbers)
        process = _Process(self._link, number, on_output, on_exit, on_errors or on_output)
        self._processes[number] = process
        options = {"lifeline": lifeline, "listener": listener, "runtime": runtime, "session": session, "tidies": tidies}
        apart = on_errors is not None
        self._link.send({"op": "run", "id": number, "argv": list(argv), "env": dict(env), "apart": apart, **options})
        return process

    def listen(self, done: Callable[[int], None]) -> None:
        """Listen at a free port of the host's address."""
        self._ask("listen", lambda message: done(int(message.get("port") or 0)), address=self.address)

    def reach(self, address: str, port: int, done: Done) -> None:
        """Say whether a port of another host can be connected to from there."""
        self._ask("reach", lambda message: done(message.get("error")), address=address, port=port)

    def list_files(self, path: str, done: Callable[[Mapping[str, tuple[int, int]]], None]) -> None:
        """Say which files there are below a folder."""
        self._ask(
            "list",
            lambda message: done({name: (size, time) for name, (size, time) in (message.get("files") or {}).items()}),
            path=path,
        )

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders."""
        self._link.send({"op": "remove", "paths": list(paths)})

    def await_files(self, paths: Sequence[str], done: Done) -> None:
        """Wait until files are there."""
        self._ask("await", lambda message: done(message.get("error")), paths=list(paths))

    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """SIGKILL to everything that was run there but some."""
        numbers = [number for number, process in self._processes.items() if process in spare]
        self._link.send({"op": "abort", "spare": numbers})


class _Process:
    def __init__(
        self,
        link: Link,
        number: int,
        on_output: Callable[[bytes], None],
        on_exit: Callable[[ProcessEnd], None],
        on_errors: Callable[[bytes], None],
    ) -> None:
        self._link = link
        self._number = number
        self.on_output = on_output
        self.on_exit = on_exit
        self.on_errors = on_errors

    def write(self, data: bytes) -> None:
        """Write to its input."""
        self._link.send({"op": "input", "id": self._number}, data)

    def close_input(self) -> None:
        """End its input."""
        self._link.send({"op": "close", "id": self._number})

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._link.send({"op": "signal", "id": self._number, "number": int(number)})
