"""Run a job's supervisor on a machine that is reached by ssh: ``RunOptions(dispatcher="user@host")``.

Our code is sent to the machine, as for hosts of ``instance_type="ssh"``. If the options name no Python interpreter, a
Python environment is created on the machine. One ssh connection follows the job and carries requests to its supervisor.
When this connection ends, the programs on the machine that serve it end, too. The supervisor continues.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.messages import Message, encode
from container.contract.rules import option
from container.system.asyncio_loop import AsyncioLoop
from container.system.background import Background
from container.system.connection import Connection
from estimators.backends.dispatchers import parcels
from estimators.backends.dispatchers.base import (
    LIMIT,
    PACKAGES,
    PROGRAM,
    Dispatcher,
    DispatchRefused,
    Parcel,
    Unreached,
)
from estimators.backends.hosts import shipping
from estimators.backends.hosts.child import ChildProcess
from estimators.backends.hosts.environment import PythonEnvironment
from estimators.backends.hosts.provider import HostError
from estimators.backends.openssh import starting
from estimators.backends.openssh.command import SshSettings
from estimators.backends.openssh.connection import WHY_S, Connections, SshConnection
from estimators.backends.ssh.machines import parse
from estimators.job.errors import ConfigurationError
from estimators.provision.errors import ProvisionError
from estimators.records.record import jobs_folder

#: Seconds between two heartbeats to our program on the machine. The program exits if several heartbeats are missing.
BEAT_S = 5.0

_TEXT = rules.text()


@dataclass(frozen=True, kw_only=True)
class SshDispatcherOptions:
    """The ``RunOptions(dispatcher_options={…})`` of a dispatcher that is reached by ssh.

    Attributes:
        python: The Python interpreter of an existing environment on the machine. If None, an environment is created on
            the machine.
        ssh_config: A configuration file on this machine to use instead of ``~/.ssh/config``.
        home: The folder for records on the machine. The default is the user's default folder for records on the
            machine.
    """

    python: str | None = option(_TEXT)
    ssh_config: Path | None = option(lambda where, value: Path(_TEXT(where, value)).expanduser())
    home: str | None = option(_TEXT)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SshDispatcherOptions:
        """Read the options of the dispatcher from ``dispatcher_options``.

        Raises:
            ConfigurationError: an option is unknown, or its value is not a string.
        """
        return rules.read(cls, options, what="dispatcher option", argument="dispatcher_options")  # type: ignore[no-any-return]


class SshDispatcher(Dispatcher):
    """A dispatcher that is reached by ssh.

    See :class:`estimators.backends.dispatchers.base.Dispatcher` for the interface.
    """

    kind: ClassVar[str] = "ssh"

    def __init__(self, loop: AsyncioLoop, place: str, options: Mapping[str, Any]) -> None:
        super().__init__(loop, place, options)
        self._options = SshDispatcherOptions.of(options)
        self._destination = parse(place, "dispatcher").destination
        known = jobs_folder().parent / "dispatchers" / "known_hosts"
        self._connections = Connections(loop, SshSettings(known_hosts=known, config=self._options.ssh_config))
        self._taker: tuple[SshConnection, ChildProcess] | None = None
        self._writer: asyncio.WriteTransport | None = None  # writes to the program that reports changes
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)

    @classmethod
    def check(cls, place: str, options: Mapping[str, Any]) -> None:
        """Refuse an invalid machine name, a number of slots, unknown options, and a missing ssh configuration file."""
        given = SshDispatcherOptions.of(options)
        if parse(place, "dispatcher").slots is not None:
            raise ConfigurationError(f"dispatcher={place!r}: a dispatcher has no slots. Leave the number of slots out.")
        if given.ssh_config is not None and not given.ssh_config.is_file():
            raise ConfigurationError(f"dispatcher_options: 'ssh_config': {given.ssh_config} is not a file.")

    # --- the program there ---

    async def _start(self, *words: str) -> tuple[SshConnection, ChildProcess]:
        """Connect to the machine, and start our program on the machine.

        Raises:
            HostError: the program cannot be started. The message has the reason.
        """
        options = self._options
        connection = await self._connections.open(self._destination)
        try:
            try:
                python = options.python or PythonEnvironment.of(None, also=PACKAGES).name
            except ProvisionError as error:
                text = " ".join(str(error).split())
                raise HostError(
                    f"no environment can be made there: {text} Or name the interpreter of an existing "
                    "environment: dispatcher_options={'python': …}"
                ) from None
            ours = starting.OurProgram(
                code=shipping.code("estimators"),
                python=python,
                words=(PROGRAM, *words, *(() if options.home is None else ("--home", options.home))),
                environment={"requirements": None, "also": list(PACKAGES)} if options.python is None else None,
                script=shipping.START_MODULE,
            )
            return connection, await starting.start(connection, ours, self.news.put_nowait)
        except BaseException:
            connection.close()
            raise

    async def _why(self, connection: SshConnection, program: ChildProcess) -> str:
        """Wait a short time for the reason why a program has ended, and return the reason."""
        await asyncio.sleep(WHY_S)
        return connection.ended or program.complaint or "the connection ended"

    async def prepare(self) -> None:
        """Start our program on the dispatcher's machine. The program then waits for the parcel, the job's data."""
        try:
            self._taker = await self._start("submit")
        except HostError as error:
            raise DispatchRefused(str(error)) from None

    async def submit(self, parcel: Parcel) -> None:
        """Send the parcel, the job's data, to our program on the machine. The program starts the supervisor."""
        assert self._taker is not None
        connection, program = self._taker
        messages = _Messages(self.loop, program.output)
        try:
            self.news.put_nowait(f"{self.place}: sending the job there")
            sending = functools.partial(_send, program.input, parcel)
            Background.of(self.loop).run(sending, lambda nothing: None, lambda error: None)
            said: Message = {}
            while (message := await messages.next()) is not None:
                said = message
            why = await self._why(connection, program)
        finally:
            messages.close()
            connection.close()
        if said.get("op") == "refused":
            raise DispatchRefused(str(said.get("error")))
        if said.get("op") != "done":
            raise Unreached(why)

    async def follow(self, name: str, have: Mapping[str, Any]) -> AsyncGenerator[Message, None]:
        """Start our program on the machine, and yield the changes of the job's record that the program reports."""
        try:
            connection, program = await self._start("follow", name)
        except HostError as error:
            raise Unreached(str(error)) from None
        messages = _Messages(self.loop, program.output)
        pipe = os.fdopen(program.input, "wb", buffering=0)
        beating: asyncio.Future[None] | None = None
        try:
            self._writer, _ = await self.loop.connect_write_pipe(asyncio.BaseProtocol, pipe)
            beating = asyncio.ensure_future(self._beat(self._writer))
            self._writer.write(encode({"op": "have", **have}, LIMIT))
            while (message := await messages.next()) is not None:
                if message["op"] == "answer":
                    answer = self._asked.get(int(message.get("id") or 0))
                    if answer is not None and not answer.done():
                        answer.set_result({key: value for key, value in message.items() if key != "id"})
                elif message["op"] != "beat":
                    yield message
                if message["op"] in ("end", "missing"):
                    return
            raise Unreached(await self._why(connection, program))
        finally:
            if self._writer is not None and beating is not None:
                beating.cancel()
                if not self._writer.is_closing():  # after a broken connection, the writer is closing already
                    self._writer.abort()  # close() would wait until the machine has read everything
                self._writer = None
            messages.close()
            connection.close()
            text = f"the connection to the dispatcher {self.place} was lost."
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_result({"ok": False, "error": text})

    async def ask(self, message: Message) -> Message:
        """Send a request over the connection that follows the job, and return the answer."""
        if self._writer is None:
            return {"ok": False, "error": f"the dispatcher {self.place} cannot be reached at the moment."}
        number = next(self._numbers)
        answer = self._asked[number] = self.loop.create_future()
        self._writer.write(encode({"op": "ask", "id": number, "message": message}, LIMIT))
        try:
            return dict(await answer)
        finally:
            del self._asked[number]

    async def _beat(self, writer: asyncio.WriteTransport) -> None:
        while True:
            writer.write(encode({"op": "beat"}, LIMIT))
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        """Close the connection. The program on the machine ends, but the supervisor continues to run."""
        self._connections.close()


class _Messages:
    """A reader of the messages that a program prints."""

    def __init__(self, loop: AsyncioLoop, read: int) -> None:
        self._said: asyncio.Queue[Message | None] = asyncio.Queue()
        self._program = Connection(
            loop, read, self._said.put_nowait, lambda reason: self._said.put_nowait(None), limit=LIMIT
        )

    async def next(self) -> Message | None:
        """Return the next message. Return None after the last message."""
        return await self._said.get()

    def close(self) -> None:
        """Stop reading."""
        self._program.close()


def _send(descriptor: int, parcel: Parcel) -> None:
    with os.fdopen(descriptor, "wb") as pipe:
        parcels.write(pipe, parcel)
