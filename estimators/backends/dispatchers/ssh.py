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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from container.contract.messages import Message, encode
from container.contract.names import shown, unknown
from container.system.asyncio_loop import AsyncioLoop
from container.system.background import Background
from container.system.connection import Reader
from estimators.backends.dispatchers import parcels
from estimators.backends.dispatchers.base import LIMIT, PACKAGES, PROGRAM, Dispatcher, Parcel
from estimators.backends.hosts import shipping
from estimators.backends.hosts.environment import PythonEnvironment
from estimators.backends.hosts.provider import HostError
from estimators.backends.ssh import starting
from estimators.backends.ssh.command import SshSettings
from estimators.backends.ssh.connection import WHY_S, Connections, RunningProgram, SshConnection
from estimators.backends.ssh.machines import parse
from estimators.job.errors import ConfigurationError, FleetfitError
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
        self._task: asyncio.Task[None] | None = None  # what submits or follows
        self._writer: int | None = None  # to the program that tells what is new
        self._asked: dict[int, Callable[[Message], None]] = {}
        self._numbers = itertools.count(1)

    @classmethod
    def check(cls, place: str, options: Mapping[str, Any]) -> None:
        """Refuse what is no machine's name, and options that there are not."""
        given = SshDispatcherOptions.of(options)
        if parse(place, "dispatcher").slots is not None:
            raise ConfigurationError(f"dispatcher={place!r}: a dispatcher has no slots; leave the number of slots out.")
        if given.ssh_config is not None and not given.ssh_config.is_file():
            raise ConfigurationError(f"dispatcher_options: 'ssh_config': {given.ssh_config} is not a file.")

    # --- its program ---

    async def _start(
        self, words: Sequence[str], say: Callable[[str], None] = lambda text: None
    ) -> tuple[SshConnection, RunningProgram]:
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
            program = starting.Program(
                code=shipping.code("estimators"),
                python=python,
                words=(PROGRAM, *words, *(() if options.home is None else ("--home", options.home))),
                environment={"requirements": None, "also": list(PACKAGES)} if options.python is None else None,
                script=shipping.START_MODULE,
            )
            return connection, (await starting.start(connection, program, say))[0]
        except BaseException:
            connection.close()
            raise

    async def _why(self, connection: SshConnection, program: RunningProgram) -> str:
        """Return why a program has ended, which is known in a moment."""
        await asyncio.sleep(WHY_S)
        return connection.ended or program.complaint or "the connection ended"

    def submit(
        self,
        parcel: Callable[[], Parcel],
        say: Callable[[str], None],
        done: Callable[[], None],
        refused: Callable[[str], None],
        lost: Callable[[str], None],
    ) -> None:
        """Have the program there take the parcel, and start the supervisor."""
        self._task = self.loop.start(self._submit(parcel, say, done, refused, lost))

    async def _submit(
        self,
        parcel: Callable[[], Parcel],
        say: Callable[[str], None],
        done: Callable[[], None],
        refused: Callable[[str], None],
        lost: Callable[[str], None],
    ) -> None:
        try:
            connection, program = await self._start(("submit",), say)
        except HostError as error:
            refused(str(error))
            return
        answers: list[Message] = []
        try:
            try:
                brought = parcel()
            except (FleetfitError, OSError) as error:
                program.close()
                refused(str(error))
                return
            say(f"{self.place}: sending the job there")
            over = self.loop.future()
            reader = Reader(self.loop, program.read, answers.append, over.set_result, limit=LIMIT)
            Background.of(self.loop).run(
                lambda: _send(program.write, brought), lambda nothing: None, lambda error: None
            )
            try:
                await over
                why = await self._why(connection, program)
            finally:
                reader.close()
        finally:
            connection.close()
        said = answers[-1] if answers else {}
        if said.get("op") == "done":
            done()
        elif said.get("op") == "refused":
            refused(str(said.get("error")))
        else:
            lost(why)

    def follow(
        self, name: str, have: Mapping[str, Any], take: Callable[[Message], None], lost: Callable[[str], None]
    ) -> None:
        """Have the program there read the record."""
        self._task = self.loop.start(self._follow(name, have, take, lost))

    async def _follow(
        self, name: str, have: Mapping[str, Any], take: Callable[[Message], None], lost: Callable[[str], None]
    ) -> None:
        try:
            connection, program = await self._start(("follow", name))
        except HostError as error:
            lost(str(error))
            return
        over = self.loop.future()
        reader = Reader(self.loop, program.read, functools.partial(self._take, take), over.set_result, limit=LIMIT)
        self._writer = program.write
        try:
            self._write({"op": "have", **have})
            while not over.done():
                self._write({"op": "beat"})
                await asyncio.wait([over], timeout=BEAT_S)
            why = await self._why(connection, program)
        finally:
            self._writer = None
            reader.close()
            os.close(program.write)
            connection.close()
            asked, self._asked = self._asked, {}
            for answered in asked.values():
                answered({"ok": False, "error": f"the connection to the dispatcher {self.place} was lost."})
        lost(why)

    def _take(self, take: Callable[[Message], None], message: Message) -> None:
        if message["op"] == "answer":
            answered = self._asked.pop(int(message.get("id") or 0), None)
            if answered is not None:
                answered({key: value for key, value in message.items() if key != "id"})
        elif message["op"] != "beat":
            take(message)

    def ask(self, message: Message, answered: Callable[[Message], None]) -> None:
        """Ask over the connection that follows."""
        if self._writer is None:
            answered({"ok": False, "error": f"the dispatcher {self.place} cannot be reached at the moment."})
            return
        number = next(self._numbers)
        self._asked[number] = answered
        self._write({"op": "ask", "id": number, "message": message})

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
        if self._task is not None:
            self._task.cancel()
        self._connections.close()


def _send(descriptor: int, parcel: Parcel) -> None:
    with os.fdopen(descriptor, "wb") as pipe:
        parcels.write(pipe, parcel)
