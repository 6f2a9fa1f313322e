"""A dispatcher that ssh reaches: ``RunOptions(dispatcher="user@host")``.

Our code, and an environment where none is named, are brought there as to hosts of ``instance_type="ssh"``. One
connection follows the job, over which its supervisor is asked, too; everything that runs there for that ends with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from container.contract.messages import Message, encode
from container.contract.names import shown, unknown
from container.system.background import Background
from container.system.connection import Reader
from container.system.loop import Loop, Timer
from estimators.backends.dispatchers import parcels
from estimators.backends.dispatchers.base import LIMIT, PACKAGES, PROGRAM, Dispatcher, Parcel
from estimators.backends.hosts import shipping
from estimators.backends.hosts.environment import PythonEnvironment
from estimators.backends.ssh.child import Child
from estimators.backends.ssh.command import SshSettings
from estimators.backends.ssh.connection import Connections, Finished, SshConnection
from estimators.backends.ssh.machines import parse
from estimators.backends.ssh.starting import Program, Starting
from estimators.job.errors import ConfigurationError, FleetfitError
from estimators.provision.errors import ProvisionError
from estimators.records.record import jobs_folder

#: How often the program there is told that somebody still follows, in seconds; it ends after some of them.
BEAT_S = 5.0
#: How long after the end of what a connection carries its own end, and why, is told, in seconds.
_WHY_S = 0.1


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

    def __init__(self, loop: Loop, place: str, options: Mapping[str, Any]) -> None:
        super().__init__(loop, place, options)
        self._options = SshDispatcherOptions.of(options)
        self._destination = parse(place, "dispatcher").destination
        known = jobs_folder().parent / "dispatchers" / "known_hosts"
        self._connections = Connections(loop, SshSettings(known_hosts=known, config=self._options.ssh_config))
        self._background = Background(loop)
        self._connection: SshConnection | None = None
        self._children: list[Child] = []
        self._reader: Reader | None = None
        self._writer: int | None = None
        self._asked: dict[int, Callable[[Message], None]] = {}
        self._number = 0
        self._timer: Timer | None = None

    @classmethod
    def check(cls, place: str, options: Mapping[str, Any]) -> None:
        """Refuse what is no machine's name, and options that there are not."""
        given = SshDispatcherOptions.of(options)
        if parse(place, "dispatcher").slots is not None:
            raise ConfigurationError(f"dispatcher={place!r}: a dispatcher has no slots; leave the number of slots out.")
        if given.ssh_config is not None and not given.ssh_config.is_file():
            raise ConfigurationError(f"dispatcher_options: 'ssh_config': {given.ssh_config} is not a file.")

    # --- its program ---

    def _run(
        self,
        words: Sequence[str],
        started: Callable[[int, int], None],
        failed: Callable[[str], None],
        on_end: Callable[[Finished], None],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Start our program there."""
        options = self._options

        def connected(connection: SshConnection) -> None:
            self._connection = connection
            try:
                python = options.python or PythonEnvironment.of(None, also=PACKAGES).name
            except ProvisionError as error:
                text = " ".join(str(error).split())
                failed(
                    f"no environment can be made there: {text} Or name the interpreter of an existing "
                    "environment: dispatcher_options={'python': …}"
                )
                return
            home = () if options.home is None else ("--home", options.home)
            program = Program(
                code=shipping.code("estimators"),
                python=python,
                words=(PROGRAM, *words, *home),
                environment={"requirements": None, "also": list(PACKAGES)} if options.python is None else None,
                script=shipping.START_MODULE,
            )
            Starting(
                self.loop,
                connection,
                program,
                started=started,
                failed=failed,
                on_end=on_end,
                say=say,
                children=self._children,
            ).begin()

        try:
            self._connections.open(self._destination, connected, failed)
        except OSError as error:
            failed(f"a folder for ssh's sockets could not be made here: {error}")

    def submit(
        self,
        parcel: Callable[[], Parcel],
        say: Callable[[str], None],
        done: Callable[[], None],
        refused: Callable[[str], None],
        lost: Callable[[str], None],
    ) -> None:
        """Have the program there take the parcel, and start the supervisor."""
        answers: list[Message] = []
        complaints: list[str] = []
        begun = False

        def started(read: int, write: int) -> None:
            nonlocal begun
            try:
                brought = parcel()
            except (FleetfitError, OSError) as error:
                os.close(read)
                os.close(write)
                self._drop()
                refused(str(error))
                return
            begun = True
            self._reader = Reader(self.loop, read, answers.append, lambda reason: over(), limit=LIMIT)
            say(f"{self.place}: sending the job there")
            self._background.run(lambda: _send(write, brought), lambda nothing: None, lambda error: None)

        def ended(finished: Finished) -> None:
            complaints.append(finished.last_line if finished.errors.strip() else "")

        def over() -> None:
            self._reader = None
            self.loop.call_later(_WHY_S, told)  # why it ended is told in a moment

        def told() -> None:
            why = self._why(complaints)
            self._drop()
            said = answers[-1] if answers else {}
            if said.get("op") == "done":
                done()
            elif said.get("op") == "refused":
                refused(str(said.get("error")))
            else:
                lost(why)

        self._run(("submit",), started, lambda text: lost(text) if begun else refused(text), ended, say)

    def follow(
        self, name: str, have: Mapping[str, Any], take: Callable[[Message], None], lost: Callable[[str], None]
    ) -> None:
        """Have the program there read the record."""
        complaints: list[str] = []

        def started(read: int, write: int) -> None:
            os.set_blocking(write, False)
            self._writer = write
            self._reader = Reader(self.loop, read, received, lambda reason: over(), limit=LIMIT)
            self._write({"op": "have", **have})
            self._beat()

        def received(message: Message) -> None:
            if message["op"] == "answer":
                answered = self._asked.pop(int(message.get("id") or 0), None)
                if answered is not None:
                    answered({key: value for key, value in message.items() if key != "id"})
            elif message["op"] != "beat":
                take(message)

        def ended(finished: Finished) -> None:
            complaints.append(finished.last_line if finished.errors.strip() else "")

        def over() -> None:
            self._reader = None
            self.loop.call_later(_WHY_S, told)

        def told() -> None:
            why = self._why(complaints)
            self._drop()
            lost(why)

        self._run(("follow", name), started, lost, ended)

    def _why(self, complaints: Sequence[str]) -> str:
        ended = self._connection.ended if self._connection is not None else None
        return next((text for text in (ended, *complaints) if text), "the connection ended")

    def ask(self, message: Message, answered: Callable[[Message], None]) -> None:
        """Ask over the connection that follows."""
        if self._writer is None:
            answered({"ok": False, "error": f"the dispatcher {self.place} cannot be reached at the moment."})
            return
        self._number += 1
        self._asked[self._number] = answered
        self._write({"op": "ask", "id": self._number, "message": message})

    def _beat(self) -> None:
        if self._writer is not None:
            self._write({"op": "beat"})
            self._timer = self.loop.call_later(BEAT_S, self._beat)

    def _write(self, message: Message) -> None:
        """Write a message, which a pipe takes as a whole, unless the other end has not read for long."""
        if self._writer is None:
            return
        data = memoryview(encode(message, LIMIT))
        os.set_blocking(self._writer, len(data) > 4096)  # only what begins a connection is long, and it is read then
        with contextlib.suppress(OSError):  # its end is told by the reader
            _write_all(self._writer, data)

    def _drop(self) -> None:
        """Let go of the connection: who waits for an answer gets none."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for answered in list(self._asked.values()):
            answered({"ok": False, "error": f"the connection to the dispatcher {self.place} was lost."})
        self._asked.clear()
        if self._connection is not None:
            self._connection.close()

    def close(self) -> None:
        """Close the connection, at which the program there ends; the supervisor does not."""
        for child in self._children:
            child.kill()
        self._drop()
        self._connections.close()


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _send(descriptor: int, parcel: Parcel) -> None:
    with os.fdopen(descriptor, "wb") as pipe:
        parcels.write(pipe, parcel)
