"""Connections to machines by OpenSSH: one ControlMaster for each, everything else through it.

The user's own ``ssh`` does the work, so that ``~/.ssh/config``, agents, jump hosts, keys and certificates count as they
do on the command line. Every process of ssh's ends with this one, and what it has started on the machine sees the end
of its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import random
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from container.system import folders
from container.system.asyncio_loop import AsyncioLoop, within
from container.system.removing import remove_tree
from estimators.backends.hosts import login_shell
from estimators.backends.hosts.child import ChildProcess, in_memory
from estimators.backends.hosts.provider import HostError, Say
from estimators.backends.openssh.command import DROPPED, FINAL, SILENT, Destination, SshSettings, reason

#: How many connections are made at once: sshd's ``MaxStartups`` drops logins from the tenth on.
AT_ONCE = 8
#: How a connection ends that nobody complained of, such as one whose program has ended.
CLOSED = "the connection was closed by the machine"
#: How often a login that sshd has dropped is tried again, and how long to wait before, in seconds; doubled each time.
_TRIES = 6
_WAIT_S = 0.2
#: How long after the end of what a connection carries its own end, and why, is told, in seconds.
WHY_S = 0.1
#: After so many seconds it is told what may keep a login, and after so many it is given up.
_LATE_S, _GIVE_UP_S = 2.0, 120.0
_LATE = (
    "the login has not succeeded yet. The network is slow, or the login shell's rc files wait for something or start "
    "another shell (`exec fish`). `ssh HOST true` must return"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        code: Its exit status; 255 also when ssh itself failed.
        output: What it printed.
        errors: What it wrote to its standard error, the last 16 KiB.
    """

    code: int
    output: bytes
    errors: str

    @property
    def last_line(self) -> str:
        """Return its last words, as the reason of its failure."""
        lines = (self.errors.strip() or self.output.decode(errors="replace").strip()).splitlines()
        return lines[-1] if lines else f"exit status {self.code}"


class NotStarted(HostError):
    """Tell that a program on a machine has ended before it began: it was not found, say.

    Attributes:
        code: Its exit status.
    """

    def __init__(self, code: int, complaint: str) -> None:
        super().__init__(complaint or f"exit status {code}")
        self.code = code


class _LoginFailed(HostError):
    """Say why a login has failed, with what ssh complained of."""

    def __init__(self, text: str, complaint: str) -> None:
        super().__init__(text)
        self.complaint = complaint


class Connections:
    """Connect to a fleet's machines, for one process.

    Args:
        loop: The process's loop.
        settings: How its machines are reached.
    """

    def __init__(self, loop: AsyncioLoop, settings: SshSettings) -> None:
        self.loop = loop
        self.settings = settings
        self.open_ones: set[SshConnection] = set()
        self._folder: Path | None = None
        self._logins = asyncio.Semaphore(AT_ONCE)
        self._numbers = itertools.count(1)

    async def open(
        self, destination: Destination, *, patience: float = 0.0, on_late: Say = lambda text: None
    ) -> SshConnection:
        """Connect to a machine. Logins that sshd drops because there are too many are tried again.

        Args:
            destination: The machine.
            patience: For how many seconds anything that may pass is tried again: a machine that starts.
            on_late: Told what it may be, where the login takes long.

        Raises:
            HostError: the login was not accepted; with the reason and the remedy.
        """
        until = time.monotonic() + patience
        connection = SshConnection(self, destination, self._socket())
        self.open_ones.add(connection)
        tries = 0
        try:
            while True:
                tries += 1
                try:
                    async with self._logins:
                        await connection.login(on_late)
                    return connection
                except _LoginFailed as error:
                    patient = time.monotonic() < until and not FINAL.search(error.complaint)
                    if not patient and (tries == _TRIES or not DROPPED.search(error.complaint)):
                        raise
                wait = min(_WAIT_S * 2.0 ** (tries - 1), 2.0 if patient else 30.0)
                await asyncio.sleep(wait * random.uniform(0.7, 1.3))
        except BaseException:
            connection.close()
            raise

    def _socket(self) -> Path:
        """Return the place of a new connection's socket."""
        try:
            if self._folder is None:
                self.settings.known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._folder = folders.make()
        except OSError as error:
            raise HostError(f"a folder for ssh's sockets could not be made here: {error}") from None
        return self._folder / str(next(self._numbers))

    def close(self) -> None:
        """End all of them."""
        for connection in list(self.open_ones):
            connection.close()
        if self._folder is not None:
            remove_tree(self._folder, ignore_errors=True)
            self._folder = None


class SshConnection:
    """Reach a machine that has accepted the login; see :meth:`Connections.open`.

    Attributes:
        loop: The process's loop.
        destination: The machine.
        address: The machine's address as it sees the connection; "" where its sshd does not say.
        caller_address: This machine's, as the other sees it.
        ended: Why it has ended, if it has.
    """

    def __init__(self, connections: Connections, destination: Destination, socket: Path) -> None:
        self.destination = destination
        self.address = self.caller_address = ""
        self.ended: str | None = None
        self._connections = connections
        self.loop = connections.loop
        self._socket = socket
        self._master: ChildProcess | None = None

    # --- the master ---

    async def login(self, on_late: Say) -> None:
        """Log in.

        Raises:
            HostError: ssh has not come through; with the reason and the remedy.
        """
        mark = _mark()
        # The master has a session of its own, which says when the login and the shell there are through. It ends with
        # its input, which is ours as long as nothing else holds the connection.
        argv = [*self._words(master=True), f"echo {mark} $SSH_CONNECTION && exec cat"]
        master = self._master = _spawn(self.loop, argv)
        late = self.loop.call_later(_LATE_S, lambda: on_late(_LATE))
        try:
            words = await within(_GIVE_UP_S, self._greeting(master, mark))
        except asyncio.TimeoutError:
            master.close()
            raise HostError(_LATE) from None
        except BaseException:
            master.close()
            raise
        finally:
            late.cancel()
        if len(words) == 4:
            self.caller_address, self.address = words[0], words[2]
        master.errors.clear()  # the machine's greeting
        self.loop.start(self._watch(master))

    async def _greeting(self, master: ChildProcess, mark: str) -> list[str]:
        """Return what the master's session says of the connection, after what a login shell prints."""
        printed = ""
        with contextlib.suppress(EOFError):
            while True:
                line = (await master.line()).decode("utf-8", "replace")
                if mark in line:
                    return line.partition(mark)[2].split()
                printed = line.strip() or printed
        code = await master.wait()
        errors = master.errors.decode(errors="replace")
        text = reason(errors, self._connections.settings, self.destination)
        if text == SILENT and printed:
            text = f"its login shell printed {printed[:200]!r} and ended: `ssh HOST true` must succeed"
        if code == 0:
            text = "the login ended at once. The login shell must run commands: `ssh HOST true` must succeed"
        raise _LoginFailed(text, errors)

    async def _watch(self, master: ChildProcess) -> None:
        """Note why the connection has ended."""
        try:
            await master.wait()
        finally:
            master.close()
        if self.ended is None:
            errors = master.errors.decode(errors="replace")
            self.ended = reason(errors, self._connections.settings, self.destination) if errors.strip() else CLOSED
        self.close()

    def _words(self, *, master: bool) -> list[str]:
        control: dict[str, object] = {
            "ControlMaster": "yes" if master else "no",
            "ControlPath": self._socket,
            "ControlPersist": "no",
        }
        if not master:  # without one, ssh would connect by itself
            control["ProxyCommand"] = "false"
        words = [word for name, value in control.items() for word in ("-o", f"{name}={value}")]
        # Only at this level it says that the machine is silent.
        settings = self._connections.settings.words(level="INFO" if master else "ERROR")
        return [*settings, *words, *self.destination.words()]

    # --- what goes through it ---

    @property
    def words(self) -> list[str]:
        """Return the command line that runs a command, its last word, through this connection."""
        return self._words(master=False)

    async def run(self, argv: Sequence[str], source: bytes = b"") -> CommandEnd:
        """Run a command there to its end, also where that is the connection's.

        Args:
            argv: Its words.
            source: What its input is to be.
        """
        return await _run(self.loop, [*self.words, login_shell.line(argv)], source)

    async def start(self, argv: Sequence[str], *, script: str = 'echo "$0"; exec "$@"') -> ChildProcess:
        """Start a program there that is spoken to over its standard input and output.

        What a login shell prints before is left out. The connection ends with the last program that was started so.

        Args:
            argv: Its words.
            script: How it is started from them, for ``sh``; it prints ``$0`` before the program begins.

        Raises:
            NotStarted: it has ended before it began.
        """
        mark = _mark()
        program = _spawn(self.loop, [*self.words, login_shell.line(["sh", "-c", script, mark, *argv])])
        try:
            if not await self._skip(f"{mark}\n".encode(), program.output):
                raise NotStarted(await program.wait(), program.complaint)
        except BaseException:
            program.kill()
            program.close()
            raise
        # From now on the connection lasts as long as the program: beyond a link that is cut, only sshd's own processes
        # would not know.
        if self._master is not None:
            self._master.close_input()
        return program

    async def _skip(self, mark: bytes, fd: int) -> bool:
        """Read up to the mark and not further: what follows is the program's."""
        os.set_blocking(fd, False)
        said, ready = bytearray(), asyncio.Event()
        self.loop.add_reader(fd, ready.set)
        try:
            while not said.endswith(mark):
                try:
                    data = os.read(fd, 1)
                except BlockingIOError:
                    ready.clear()
                    await ready.wait()
                    continue
                if not data:
                    return False
                said += data
        finally:
            self.loop.remove_reader(fd)
        return True

    async def forward(self, here: Path, there: str) -> None:
        """Forward connections to a unix socket here to an address (``host:port``) as the machine sees it.

        Raises:
            HostError: ssh does not do so.
        """
        finished = await self._forward("-L", f"{here}:{there}")
        if finished.code != 0:
            raise HostError(finished.last_line)

    async def forward_back(self, here: Path) -> int:
        """Forward connections to a free port of the machine's loopback address to a unix socket here.

        Returns:
            The port.

        Raises:
            HostError: the machine does not do so.
        """
        finished = await self._forward("-R", f"127.0.0.1:0:{here}")
        if finished.code != 0 or not finished.output.strip().isdigit():
            raise HostError(f"its sshd does not forward ports (AllowTcpForwarding): {finished.last_line}")
        return int(finished.output)

    async def _forward(self, way: str, ends: str) -> CommandEnd:
        settings = [*self._connections.settings.words(forwards=True), "-o", f"ControlPath={self._socket}"]
        return await _run(self.loop, [*settings, "-O", "forward", way, ends, *self.destination.words()])

    @property
    def folder(self) -> Path:
        """Return a folder of this process's alone, for sockets."""
        return self._socket.parent

    def close(self) -> None:
        """End it and everything that goes through it."""
        self.ended = self.ended or "the connection was closed"
        self._connections.open_ones.discard(self)
        if self._master is not None:
            self._master.close_input()
            self._master.kill()


def _mark() -> str:
    return f"fleetfit-{secrets.token_hex(8)}"


def _spawn(loop: AsyncioLoop, argv: Sequence[str], stdin: int | None = None) -> ChildProcess:
    try:
        return ChildProcess(loop, argv, stdin=stdin)
    except FileNotFoundError:
        raise HostError("ssh is not installed on this machine. Install it (apt-get install openssh-client)") from None
    except OSError as error:
        raise HostError(f"{error.filename}: {error.strerror}") from None


async def _run(loop: AsyncioLoop, argv: Sequence[str], source: bytes = b"") -> CommandEnd:
    """Run a process to its end; one whose end is not awaited any more is killed."""
    stdin = in_memory(source)
    try:
        program = _spawn(loop, argv, stdin)
    finally:
        os.close(stdin)
    try:
        output = await program.rest()
        return CommandEnd(code=await program.wait(), output=output, errors=program.errors.decode(errors="replace"))
    finally:
        program.kill()
        program.close()
