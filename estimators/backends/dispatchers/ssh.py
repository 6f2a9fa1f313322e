"""A dispatcher that ssh reaches: ``RunOptions(dispatcher="user@host")``.

Our code, and an environment where none is named, are brought there as to hosts of ``instance_type="ssh"``. One
connection follows the job, over which its supervisor is asked, too; everything that runs there for that ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from container.contract.messages import Message, encode
from container.contract.names import shown, unknown
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

#: How often the program there is told that somebody still follows, in seconds; it ends after some of them.
BEAT_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SshDispatcherOptions:
    """``RunOptions(dispatcher_options={…})`` of a dispatcher that ssh reaches.

    Attributes:
        python: The interpreter of an environment that is there; None: one is made.
        ssh_config: A configuration in place of ``~/.ssh/config``, on this machine.
        home: Where records are kept there; None: where its own user's are.
    """

    python: str | None = None
    ssh_config: Path | None = None
    home: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SshDispatcherOptions:
        """Read the options.

        Raises:
            ConfigurationError: an unknown one, or one that is no text.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name not in known:
                raise ConfigurationError(unknown("dispatcher option", name, known))
            if value is None:
                continue
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"dispatcher_options: {name!r} must be a string, got {shown(value)}.")
            values[name] = Path(value).expanduser() if name == "ssh_config" else value
        return cls(**values)


class SshDispatcher(Dispatcher):
    """See :class:`estimators.backends.dispatchers.base.Dispatcher`."""

    kind: ClassVar[str] = "ssh"

    def __init__(self, loop: AsyncioLoop, place: str, options: Mapping[str, Any]) -> None:
        super().__init__(loop, place, options)
        self._options = SshDispatcherOptions.of(options)
        self._destination = parse(place, "dispatcher").destination
        known = jobs_folder().parent / "dispatchers" / "known_hosts"
        self._connections = Connections(loop, SshSettings(known_hosts=known, config=self._options.ssh_config))
        self._taker: tuple[SshConnection, ChildProcess] | None = None
        self._writer: int | None = None  # to the program that tells what is new
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)

    @classmethod
    def check(cls, place: str, options: Mapping[str, Any]) -> None:
        """Refuse what is no machine's name, and options that there are not."""
        given = SshDispatcherOptions.of(options)
        if parse(place, "dispatcher").slots is not None:
            raise ConfigurationError(f"dispatcher={place!r}: a dispatcher has no slots. Leave the number of slots out.")
        if given.ssh_config is not None and not given.ssh_config.is_file():
            raise ConfigurationError(f"dispatcher_options: 'ssh_config': {given.ssh_config} is not a file.")

    # --- its program ---

    async def _start(self, *words: str) -> tuple[SshConnection, ChildProcess]:
        """Connect, and start our program there.

        Raises:
            HostError: with the reason.
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
        """Return why a program has ended, which is known in a moment."""
        await asyncio.sleep(WHY_S)
        return connection.ended or program.complaint or "the connection ended"

    async def prepare(self) -> None:
        """Start the program there that takes a parcel."""
        try:
            self._taker = await self._start("submit")
        except HostError as error:
            raise DispatchRefused(str(error)) from None

    async def submit(self, parcel: Parcel) -> None:
        """Have the program there take the parcel, and start the supervisor."""
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
        """Have the program there read the record."""
        try:
            connection, program = await self._start("follow", name)
        except HostError as error:
            raise Unreached(str(error)) from None
        self._writer = program.input
        messages = _Messages(self.loop, program.output)
        beating = asyncio.ensure_future(self._beat())
        try:
            self._write({"op": "have", **have})
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
            beating.cancel()
            self._writer = None
            messages.close()
            os.close(program.input)
            connection.close()
            text = f"the connection to the dispatcher {self.place} was lost."
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_result({"ok": False, "error": text})

    async def ask(self, message: Message) -> Message:
        """Ask over the connection that follows."""
        if self._writer is None:
            return {"ok": False, "error": f"the dispatcher {self.place} cannot be reached at the moment."}
        number = next(self._numbers)
        answer = self._asked[number] = self.loop.create_future()
        self._write({"op": "ask", "id": number, "message": message})
        try:
            return dict(await answer)
        finally:
            del self._asked[number]

    async def _beat(self) -> None:
        while True:
            self._write({"op": "beat"})
            await asyncio.sleep(BEAT_S)

    def _write(self, message: Message) -> None:
        """Write a message, which a pipe takes as a whole, unless the other end has not read for long."""
        if self._writer is None:
            return
        data = memoryview(encode(message, LIMIT))
        os.set_blocking(self._writer, len(data) > 4096)  # only what begins a connection is long, and it is read then
        with contextlib.suppress(OSError):  # its end is told by the reader
            while data:
                data = data[os.write(self._writer, data) :]

    def close(self) -> None:
        """Close the connection, at which the program there ends; the supervisor does not."""
        self._connections.close()


class _Messages:
    """Read one by one what a program says."""

    def __init__(self, loop: AsyncioLoop, read: int) -> None:
        self._said: asyncio.Queue[Message | None] = asyncio.Queue()
        self._program = Connection(
            loop, read, self._said.put_nowait, lambda reason: self._said.put_nowait(None), limit=LIMIT
        )

    async def next(self) -> Message | None:
        """Return the next message; None at the end."""
        return await self._said.get()

    def close(self) -> None:
        """Read no more."""
        self._program.close()


def _send(descriptor: int, parcel: Parcel) -> None:
    with os.fdopen(descriptor, "wb") as pipe:
        parcels.write(pipe, parcel)
