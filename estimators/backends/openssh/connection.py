"""Connect to machines with OpenSSH. Each machine has one master, an ssh process whose connection all sessions use.

fleetfit runs the user's own ``ssh`` program. ``~/.ssh/config``, agents, jump hosts, keys and certificates therefore
apply as on the command line. When this process ends, all its ssh processes end. The standard input of the programs on
the machines then ends, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from container.contract.frozen import dataclass
from container.system import folders
from container.system.asyncio_loop import AsyncioLoop, within
from container.system.removing import remove_tree
from estimators.backends.hosts import login_shell
from estimators.backends.hosts.child import ChildProcess, in_memory
from estimators.backends.hosts.provider import HostError, Say
from estimators.backends.openssh.command import DROPPED, FINAL, SILENT, Destination, SshSettings, reason

#: Maximum number of logins at once: sshd's ``MaxStartups`` drops logins from the tenth on.
AT_ONCE = 8
#: The reason for the end of a connection if ssh prints no error message, for example because the program on the machine
#: has ended.
CLOSED = "the connection was closed by the machine"
#: Number of attempts for a login that sshd drops, and the delay before the second attempt in seconds. The delay doubles
#: with each attempt.
_TRIES = 6
_WAIT_S = 0.2
#: Seconds after the end of a program on a machine within which ssh reports why the connection has ended.
WHY_S = 0.1
#: Seconds after which the user is told about a slow login, and after which the login is given up.
_LATE_S, _GIVE_UP_S = 2.0, 120.0
_LATE = (
    "the login has not succeeded yet. The network is slow, or the login shell's rc files wait for something or start "
    "another shell (`exec fish`). `ssh HOST true` must return"
)


@dataclass(frozen=True, kw_only=True)
class CommandEnd:
    """The result of a command on a machine.

    Attributes:
        code: The exit code of the command, or 255 if ssh itself has failed.
        output: The standard output of the command.
        errors: The last 16 KiB of the command's standard error.
    """

    code: int
    output: bytes
    errors: str

    @property
    def last_line(self) -> str:
        """Return the last line that the command has printed, which usually contains the reason for a failure.

        The line is from standard error. If standard error is empty, the line is from standard output.
        """
        lines = (self.errors.strip() or self.output.decode(errors="replace").strip()).splitlines()
        return lines[-1] if lines else f"exit status {self.code}"


class NotStarted(HostError):
    """Raised if a program on a machine could not be started, for example because the program was not found.

    Attributes:
        code: The exit code of the ssh command. It is the exit code of the remote shell if ssh could log in.
    """

    def __init__(self, code: int, complaint: str) -> None:
        super().__init__(complaint or f"exit status {code}")
        self.code = code


class _LoginFailed(HostError):
    """Raised if a login has failed. The attribute ``complaint`` has ssh's error messages."""

    def __init__(self, text: str, complaint: str) -> None:
        super().__init__(text)
        self.complaint = complaint


class Connections:
    """The ssh connections of this process to the machines of a fleet, a set of machines for jobs.

    Args:
        loop: The event loop of the process.
        settings: The settings with which ssh reaches the machines.
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
        """Connect to a machine, and return the connection.

        If sshd drops the login because there are too many logins at the same time, the login is tried again.

        Args:
            destination: The machine.
            patience: The number of seconds for which a failed login is tried again, for a machine that is just
                starting. Errors that waiting cannot solve are reported at once.
            on_late: A function that is called with possible reasons if the login takes long.

        Raises:
            HostError: the login has failed. The message has the reason and the remedy.
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
        """Return the path for the socket of a new connection.

        Raises:
            HostError: the folder for sockets cannot be created.
        """
        try:
            if self._folder is None:
                self.settings.known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._folder = folders.make()
        except OSError as error:
            raise HostError(f"a folder for ssh's sockets could not be made here: {error}") from None
        return self._folder / str(next(self._numbers))

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self.open_ones):
            connection.close()
        if self._folder is not None:
            remove_tree(self._folder, ignore_errors=True)
            self._folder = None


class SshConnection:
    """A connection to a machine. :meth:`Connections.open` returns it when the machine has accepted the login.

    Attributes:
        loop: The event loop of the process.
        destination: The machine.
        address: The address at which ssh has reached the machine, according to the machine's sshd. "" if sshd does not
            report the address.
        caller_address: The address of this machine, according to the other machine's sshd.
        ended: The reason why the connection has ended, or None while the connection is open.
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
        """Log in to the machine.

        Args:
            on_late: A function that is called with possible reasons if the login takes long.

        Raises:
            HostError: ssh could not connect. The message has the reason and the remedy.
        """
        mark = _mark()
        # The master has a session of its own. The session reports that the login has succeeded and that the shell has
        # started, and ends when its input ends. This process keeps the input open until a program uses the connection.
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
        master.errors.clear()  # these lines are the machine's greeting, and no errors
        self.loop.start(self._watch(master))

    async def _greeting(self, master: ChildProcess, mark: str) -> list[str]:
        """Return the addresses and ports that the master's session prints. Lines that the login shell prints are
        skipped.

        Args:
            master: The ssh process of the connection.
            mark: The text that precedes the addresses and ports in their line.

        Raises:
            _LoginFailed: the login has failed.
        """
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
        """Wait until the connection has ended, and record the reason."""
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
        if not master:  # if the master has ended, ssh would otherwise open a new connection
            control["ProxyCommand"] = "false"
        words = [word for name, value in control.items() for word in ("-o", f"{name}={value}")]
        # ssh reports that the machine does not respond only at the level INFO.
        settings = self._connections.settings.words(level="INFO" if master else "ERROR")
        return [*settings, *words, *self.destination.words()]

    # --- sessions ---

    @property
    def words(self) -> list[str]:
        """Return the command line that runs a command through this connection, without the command itself.

        The command has to be appended as one more argument.
        """
        return self._words(master=False)

    async def run(self, argv: Sequence[str], source: bytes = b"") -> CommandEnd:
        """Run a command on the machine, and return the command's result. Wait until the command or the connection has
        ended.

        Args:
            argv: The command.
            source: The standard input of the command.
        """
        return await _run(self.loop, [*self.words, login_shell.line(argv)], source)

    async def start(self, argv: Sequence[str], *, script: str = 'echo "$0"; exec "$@"') -> ChildProcess:
        """Start a program on the machine, with pipes to its standard input and output.

        Output that the login shell prints before the program starts is skipped. The connection ends when the last
        program that was started with this method ends.

        Args:
            argv: The program and its arguments.
            script: The ``sh`` script that starts the program from ``argv``. The script has to print ``$0`` before the
                program starts.

        Raises:
            NotStarted: the program could not be started.
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
        # End the master's own session: from now on, the connection lasts as long as the program. sshd would notice only
        # later that the session has lost its connection.
        if self._master is not None:
            self._master.close_input()
        return program

    async def _skip(self, mark: bytes, fd: int) -> bool:
        """Read the output up to the mark. The rest of the output is not read, because it belongs to the program.

        Returns:
            True if the mark was read, False if the output has ended before.
        """
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
        """Forward connections from a Unix socket on this machine to an address that the other machine resolves.

        Args:
            here: The path of the socket.
            there: The address: ``host:port``.

        Raises:
            HostError: ssh refuses to forward.
        """
        finished = await self._forward("-L", f"{here}:{there}")
        if finished.code != 0:
            raise HostError(finished.last_line)

    async def forward_back(self, here: Path) -> int:
        """Forward connections from a free port of the other machine's loopback address to a Unix socket on this
        machine.

        Args:
            here: The path of the socket.

        Returns:
            The port on the other machine.

        Raises:
            HostError: the other machine refuses to forward.
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
        """Return the path of the folder for the sockets of connections and forwardings. Only this process uses it."""
        return self._socket.parent

    def close(self) -> None:
        """Close the connection. All sessions and forwardings that use the connection end."""
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
    """Run a process, and return its result. Kill the process if the caller's task is cancelled."""
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
