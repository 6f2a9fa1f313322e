"""Communicate with a host through its agent, the process ``python -m container agent host`` on the host."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from container.contract.messages import Message
from container.system import folders
from container.system.asyncio_loop import AsyncioLoop
from container.system.background import Background
from container.system.link import HostLink
from container.system.transfer import Transfers
from estimators.backends.hosts.provider import (
    Host,
    HostError,
    HostFacts,
    HostLost,
    HostProcess,
    HostUnavailable,
    Output,
    ProcessEnd,
)
from estimators.backends.hosts.waiting import unless

#: Protocol version, which must be equal on both ends: :data:`container.agent.resident.PROTOCOL`.
PROTOCOL = 1
#: Seconds between two heartbeats, which the supervisor and the agent send to each other.
BEAT_S = 2.0
#: Seconds without a message from the other end after which the supervisor and the agent each close the connection.
SILENCE_S = 15.0


class HostSource:
    """The origin of a host, such as a Slurm allocation. The origin may know why the connection to a host has ended."""

    #: Whether the agent reports the signals that it receives, and does not exit. Such a signal announces that the host
    #: will be taken away.
    hears_signals = False

    async def explain(self, reason: str) -> str:
        """Return the reason why the host was lost, for the user.

        Args:
            reason: The reason why the connection to the host's agent has ended, as the connection reports it.
        """
        return reason

    def signalled(self, number: int) -> None:
        """Handle a signal that the agent has received."""


class RemoteHost(Host):
    """A host that is controlled through a connection to its agent. :meth:`connect` creates such a host.

    Args:
        loop: The supervisor's event loop.
        name: The host's name in the job.
        read: The descriptor from which the agent's frames are read. This object closes the descriptor.
        write: The descriptor to which frames for the agent are written. This object closes the descriptor.
        root: The job's folder on the host. A relative path is below the host's folder for temporary files.
        address: The address at which the other hosts reach this host.
        caller_address: The address at which this host reaches the supervisor's machine.
        interface: The host's network interface to the other hosts. If "", the interface with ``address`` is used.
        silence: The number of seconds without a message after which the supervisor and the agent each close the
            connection.
        source: The origin of the host.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        name: str,
        read: int,
        write: int,
        *,
        root: str,
        address: str,
        caller_address: str,
        interface: str,
        silence: float = SILENCE_S,
        source: HostSource = HostSource(),  # noqa: B008 - the object has no state
    ) -> None:
        super().__init__()
        self.name = name
        self.address = address
        self.caller_address = caller_address
        self.interface = interface
        self.facts = HostFacts(root=root, python="python", python_version="", package="container")
        self._loop = loop
        self._silence = silence
        self._source = source
        self._greeting: asyncio.Future[Message] = loop.create_future()
        self._heard = time.monotonic()
        self._numbers = itertools.count(1)
        self._processes: dict[int, _Process] = {}
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._link = HostLink(loop, read, write, self)
        self._transfers = Transfers(self._link, Background.of(loop), Path(folders.root()))
        self._link.send({"op": "hello", "root": root, "silence": silence, "signals": source.hears_signals})
        self._beat()

    @classmethod
    async def connect(cls, *arguments: Any, **more: Any) -> RemoteHost:
        """Create a host, wait until its agent has answered, and return the host.

        The arguments are those of the constructor.

        Raises:
            HostUnavailable: the connection has ended before the agent has answered, the agent cannot prepare the job,
                or the agent does not have this machine's version of fleetfit.
        """
        host = cls(*arguments, **more)
        lost = asyncio.ensure_future(host._unavailable())
        try:
            host._take_greeting(await unless(lost, host._greeting))
        except BaseException:
            host.close()
            raise
        finally:
            lost.cancel()
        return host

    async def _unavailable(self) -> HostError:
        return HostUnavailable(await self.until_lost())

    def _take_greeting(self, message: Message) -> None:
        if message.get("protocol") != PROTOCOL:
            text = "the host has another version of fleetfit. Install this machine's version on the host"
            raise HostUnavailable(text)
        if "error" in message:
            raise HostUnavailable(f"the host cannot prepare the job: {message['error']}")
        known = {field: message[field] for field in HostFacts.__dataclass_fields__ if field in message}
        self.facts = HostFacts(**known)
        self.interface = self.interface or self.facts.interface_of(self.address) or ""

    def _beat(self) -> None:
        if not self._link.open:
            return
        if time.monotonic() - self._heard > self._silence:
            self._link.close()
            self.closed(f"it has given no sign of life for {self._silence:g} s")
            return
        self._link.send({"op": "ping"})
        self._loop.call_later(min(BEAT_S, self._silence / 5), self._beat)

    def closed(self, reason: str) -> None:
        """Handle an end of the connection that the job has not caused: ask the source for the reason, then call
        :meth:`lose`.

        See :class:`container.system.link.LinkHandler`.
        """

        async def explain() -> None:
            self.lose(await self._source.explain(reason))

        self._loop.start(explain())

    def lose(self, reason: str) -> None:
        """Record that the host is lost, and close the connection. See :meth:`Host.lose`.

        All requests to the host, also those that wait for an answer, then raise HostLost.
        """
        super().lose(reason)
        self.close()

    def close(self) -> None:
        """Close the connection. All requests to the host, also those that wait for an answer, then raise HostLost.

        The agent terminates all processes of the job when it notices the end of the connection. This method does not
        wait for that. :meth:`until_lost` does not return.
        """
        self._link.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._gone())
        self._answers.clear()
        processes, self._processes = self._processes, {}
        for process in processes.values():
            process.over(None)

    def _gone(self) -> HostLost:
        return HostLost(self._loss_reason or "the connection was closed")

    # --- messages from the host ---

    def received(self, message: Message, body: bytes) -> None:
        """Handle a message of the agent (see :class:`container.system.link.LinkHandler`)."""
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
                process.over(end)
        elif operation == "done":
            if (answer := self._answers.get(number)) is not None and not answer.done():
                answer.set_result(message)
            elif (process := self._processes.pop(number, None)) is not None:
                process.over(ProcessEnd(error=str(message.get("error"))))
        elif operation == "data":
            self._transfers.data(number, body)
        elif operation == "end":
            self._transfers.end(number, message.get("error"))
        elif operation == "signal":
            self._source.signalled(int(message["number"]))
        elif operation == "hello" and not self._greeting.done():
            self._greeting.set_result(message)

    # --- requests to the host ---

    def _expect(self) -> tuple[int, asyncio.Future[Message]]:
        """Return the number of a new request, and a future whose result is the agent's answer to this request.

        Raises:
            HostLost: the connection has ended, or was closed by the job.
        """
        if not self._link.open:
            raise self._gone()
        number = next(self._numbers)
        answer = self._answers[number] = self._loop.create_future()
        return number, answer

    async def _answer(self, number: int, answer: asyncio.Future[Message]) -> Message:
        """Wait for the answer to a request.

        Raises:
            HostError: the answer is an error.
            HostLost: the connection has ended, or was closed by the job.
        """
        try:
            message = await answer
        finally:
            self._answers.pop(number, None)
        if message.get("error") is not None:
            raise HostError(str(message["error"]))
        return message

    async def _ask(self, operation: str, **values: Any) -> Message:
        number, answer = self._expect()
        self._link.send({"op": operation, "id": number, **values})
        return await self._answer(number, answer)

    async def push(self, source: Path, target: str, *, follow: bool = True) -> None:
        """Copy a file or the content of a folder into a folder on the host. See :meth:`Host.push`."""
        number, answer = self._expect()
        self._link.send({"op": "push", "id": number, "target": target})
        self._transfers.send(number, [(source, "")], follow=follow)
        await self._answer(number, answer)

    async def pull(self, source: str, target: Path) -> None:
        """Copy the content of a folder on the host into a folder on this machine. See :meth:`Host.pull`."""
        number, answer = self._expect()  # the agent answers only if it has failed

        def arrived(error: str | None) -> None:
            if not answer.done():
                answer.set_result({"op": "done", "error": error})

        self._transfers.expect(number, target, arrived)
        self._link.send({"op": "pull", "id": number, "source": source})
        await self._answer(number, answer)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Output,
        *,
        lifeline: str | None = None,
        listener: str | None = None,
        runtime: str | None = None,
        session: bool = False,
        tidies: bool = False,
        on_errors: Output | None = None,
    ) -> HostProcess:
        """Start a process on the host. See :meth:`Host.run`."""
        number = next(self._numbers)
        process = _Process(self, self._link, number, on_output, on_errors or on_output)
        if not self._link.open:
            process.over(None)
            return process
        self._processes[number] = process
        options = {"lifeline": lifeline, "listener": listener, "runtime": runtime, "session": session, "tidies": tidies}
        apart = on_errors is not None
        self._link.send({"op": "run", "id": number, "argv": list(argv), "env": dict(env), "apart": apart, **options})
        return process

    async def listen(self) -> int:
        """Listen at a free port of the host's address, and return the port. Return 0 if the host cannot listen."""
        try:
            return int((await self._ask("listen", address=self.address)).get("port") or 0)
        except HostLost:
            raise
        except HostError:
            return 0

    async def reach(self, address: str, port: int) -> None:
        """Test whether the host can connect to a port of another host. See :meth:`Host.reach`."""
        await self._ask("reach", address=address, port=port)

    async def list_files(self, path: str) -> Mapping[str, tuple[int, int]]:
        """Return the size and the modification time of each file below a folder. See :meth:`Host.list_files`."""
        try:
            message = await self._ask("list", path=path)
        except HostLost:
            raise
        except HostError:  # the folder does not exist
            return {}
        return {name: (size, time) for name, (size, time) in (message.get("files") or {}).items()}

    def remove(self, paths: Sequence[str]) -> None:
        """Delete files and folders on the host."""
        self._link.send({"op": "remove", "paths": list(paths)})

    async def await_files(self, paths: Sequence[str]) -> None:
        """Wait until all the files exist on the host."""
        await self._ask("await", paths=list(paths))

    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """Send SIGKILL to all processes of the job on the host except ``spare``."""
        numbers = [number for number, process in self._processes.items() if process in spare]
        self._link.send({"op": "abort", "spare": numbers})


class _Process:
    """A process on the host. See :class:`estimators.backends.hosts.provider.HostProcess` for the interface."""

    def __init__(
        self,
        host: RemoteHost,
        link: HostLink,
        number: int,
        on_output: Output,
        on_errors: Output,
    ) -> None:
        self._host = host
        self._link = link
        self._number = number
        self._ended = asyncio.Event()
        self._end: ProcessEnd | None = None
        self.on_output = on_output
        self.on_errors = on_errors

    def over(self, end: ProcessEnd | None) -> None:
        """Record how the process has ended. ``end`` is None if the connection is closed, so that the end is unknown."""
        self._end = end
        self._ended.set()

    def write(self, data: bytes) -> None:
        """Write data to the process's lifeline. If the process has no lifeline, write to its standard input."""
        self._link.send({"op": "input", "id": self._number}, data)

    def close_input(self) -> None:
        """Close the process's lifeline. If the process has no lifeline, close its standard input."""
        self._link.send({"op": "close", "id": self._number})

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._link.send({"op": "signal", "id": self._number, "number": int(number)})

    async def wait(self) -> ProcessEnd:
        """Wait until the process has ended, and return how it has ended. See :meth:`HostProcess.wait`."""
        await self._ended.wait()
        if self._end is None:
            raise self._host._gone()
        return self._end
