"""Connections to machines by OpenSSH: one ControlMaster for each, everything else through it.

The user's own ``ssh`` does the work, so that ``~/.ssh/config``, agents, jump hosts, keys and certificates count as they
do on the command line. Nothing here blocks: answers come in the supervisor's loop. Every process of ssh's ends with
this one, and what it has started on the machine sees the end of its input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from container.system import folders
from container.system.loop import Loop
from container.system.removing import remove_tree
from estimators.backends.hosts import login_shell
from estimators.backends.ssh.child import KEPT, Child
from estimators.backends.ssh.command import DROPPED, FINAL, SILENT, Destination, SshSettings, reason

#: How many connections are made at once: sshd's ``MaxStartups`` drops logins from the tenth on.
AT_ONCE = 8
#: How a connection ends that nobody complained of, such as one whose program has ended.
CLOSED = "the connection was closed by the machine"
#: How often a login that sshd has dropped is tried again, and how long to wait before, in seconds; doubled each time.
_TRIES = 6
_WAIT_S = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """How a command on a machine ended.

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
        """Its last words, as the reason of its failure."""
        lines = (self.errors.strip() or self.output.decode(errors="replace").strip()).splitlines()
        return lines[-1] if lines else f"exit status {self.code}"


#: After so many seconds it is told what may keep a login, and after so many it is given up.
_LATE_S, _GIVE_UP_S = 2.0, 120.0
_LATE = (
    "the login has not succeeded yet. The network is slow, or the login shell's rc files wait for something or start "
    "another shell (`exec fish`): `ssh HOST true` must return"
)


class Connections:
    """A fleet's connections, for one process.

    Args:
        loop: The process's loop.
        settings: How its machines are reached.
    """

    def __init__(self, loop: Loop, settings: SshSettings) -> None:
        self.loop = loop
        self.settings = settings
        self._folder: Path | None = None
        self._waiting: list[SshConnection] = []
        self._connecting: set[SshConnection] = set()
        self._open: set[SshConnection] = set()
        self._number = 0

    def open(
        self,
        destination: Destination,
        ready: Callable[[SshConnection], None],
        failed: Callable[[str], None],
        *,
        patience: float = 0.0,
    ) -> SshConnection:
        """Connect to a machine; one of the two is called in the loop.

        Args:
            destination: The machine.
            ready: Called with the connection when the login was accepted.
            failed: Called with the reason and the remedy. Logins that sshd drops because there are too many are tried
                again before.
            patience: For how many seconds anything that may pass is tried again: a machine that starts.

        Returns:
            The connection; closing it ends the attempt.
        """
        if self._folder is None:
            self.settings.known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder = folders.make()
        self._number += 1
        connection = SshConnection(self, destination, self._folder / str(self._number), ready, failed, patience)
        self._waiting.append(connection)
        self.loop.call_later(0, self._next)
        return connection

    def _next(self) -> None:
        while self._waiting and len(self._connecting) < AT_ONCE:
            connection = self._waiting.pop(0)
            self._connecting.add(connection)
            connection.connect()

    def connected(self, connection: SshConnection) -> None:
        """Count an attempt as over: it came through, or waits to be made again."""
        self._connecting.discard(connection)
        self._open.add(connection)
        self._next()

    def again(self, connection: SshConnection) -> None:
        """Have an attempt made once more."""
        self._waiting.append(connection)
        self._next()

    def forget(self, connection: SshConnection) -> None:
        """Drop a connection that has ended."""
        self._open.discard(connection)
        self._connecting.discard(connection)
        if connection in self._waiting:
            self._waiting.remove(connection)
        self._next()

    def close(self) -> None:
        """End all of them."""
        self._waiting.clear()
        for connection in [*self._connecting, *self._open]:
            connection.close()
        if self._folder is not None:
            remove_tree(self._folder, ignore_errors=True)
            self._folder = None


class SshConnection:
    """A machine that has accepted the login; see :meth:`Connections.open`.

    Attributes:
        destination: The machine.
        address: The machine's address as it sees the connection; "" where its sshd does not say.
        caller_address: This machine's, as the other sees it.
        on_lost: Called with the reason when the connection ends by itself; not after :meth:`close`.
        on_late: Told what it may be, where the login takes long.
        ended: Why it has ended, if it has.
    """

    def __init__(
        self,
        connections: Connections,
        destination: Destination,
        socket: Path,
        ready: Callable[[SshConnection], None],
        failed: Callable[[str], None],
        patience: float,
    ) -> None:
        self.destination = destination
        self.address = self.caller_address = ""
        self.on_lost: Callable[[str], None] = lambda text: None
        self.on_late: Callable[[str], None] = lambda text: None
        self.ended: str | None = None
        self._connections = connections
        self._loop = connections.loop
        self._socket = socket
        self._ready: Callable[[SshConnection], None] | None = ready
        self._failed = failed
        self._until = time.monotonic() + patience if patience else None
        self._tries = 0
        self._master: Child | None = None
        self._children: set[Child] = set()
        self._said = bytearray()
        self._closed = False

    # --- the master ---

    def connect(self) -> None:
        """Log in."""
        if self._closed:
            return
        self._tries += 1
        mark = _mark()
        # The master has a session of its own, which says when the login and the shell there are through. It ends with
        # its input, which is ours.
        argv = [*self._words(master=True), f"echo {mark} $SSH_CONNECTION && exec cat"]
        said = self._said = bytearray()

        def read(data: bytes) -> None:
            if self._ready is None:
                return
            said.extend(data)
            _, marked, rest = bytes(said).partition(mark.encode())
            if marked and b"\n" in rest:
                words = rest.partition(b"\n")[0].decode("ascii", "replace").split()
                if len(words) == 4:
                    self.caller_address, self.address = words[0], words[2]
                ready, self._ready = self._ready, None
                assert self._master is not None
                self._master.errors.clear()  # the machine's greeting
                self._connections.connected(self)
                ready(self)
            elif not marked and len(said) > KEPT:
                del said[:-64]

        master = self._master = Child(self._loop, argv, read, self._master_ended, keeps_input=True)
        self._loop.call_later(_LATE_S, lambda: self.on_late(_LATE) if self._waits(master) else None)
        self._loop.call_later(_GIVE_UP_S, lambda: self._give_up(_LATE) if self._waits(master) else None)

    def _waits(self, master: Child) -> bool:
        return self._master is master and self._ready is not None and not self._closed

    def _give_up(self, text: str) -> None:
        self.ended = text
        self.close()
        self._failed(text)

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

    def _master_ended(self, code: int, errors: str) -> None:
        if self._closed:
            return
        settings = self._connections.settings
        text = reason(errors, settings, self.destination)
        if self._ready is None:
            self.ended = text if errors.strip() else CLOSED
            self.close()
            self.on_lost(self.ended)
            return
        if text == SILENT and (printed := bytes(self._said).decode("utf-8", "replace").strip()):
            text = f"its login shell printed {printed.splitlines()[-1][:200]!r} and ended: `ssh HOST true` must succeed"
        if code == 0:
            text = "the login ended at once. The login shell must run commands: `ssh HOST true` must succeed"
        patient = self._until is not None and time.monotonic() < self._until and not FINAL.search(errors)
        self._connections.connected(self)
        if patient or (DROPPED.search(errors) and self._tries < _TRIES):
            wait = min(_WAIT_S * 2 ** (self._tries - 1), 2.0 if patient else 30.0) * random.uniform(0.7, 1.3)
            self._loop.call_later(wait, lambda: None if self._closed else self._connections.again(self))
            return
        self._give_up(text)

    # --- what goes through it ---

    @property
    def _tells(self) -> bool:
        """Whether the end of what runs through it is told: not to those who have closed it themselves."""
        return not self._closed or self.ended is not None

    @property
    def words(self) -> list[str]:
        """The command line that runs a command, its last word, through this connection."""
        return self._words(master=False)

    def run(
        self,
        argv: Sequence[str],
        done: Callable[[Finished], None],
        *,
        source: Path | bytes | None = None,
        on_output: Callable[[bytes], None] | None = None,
    ) -> None:
        """Run a command there and wait for its end.

        Args:
            argv: Its words.
            done: Called with how it ended, also where the connection was lost; not after :meth:`close`.
            source: A file or what its input is to be; None: nothing.
            on_output: Takes what it prints as it comes, in place of ``done``.
        """
        output = bytearray()
        child: Child | None = None

        def ended(code: int, errors: str) -> None:
            if child is not None:
                self._children.discard(child)
            if self._tells:
                done(Finished(code=code, output=bytes(output), errors=errors))

        child = Child(
            self._loop,
            [*self._words(master=False), login_shell.line(argv)],
            on_output or output.extend,
            ended,
            source=source,
        )
        if child.pid:
            self._children.add(child)

    def start(
        self,
        argv: Sequence[str],
        started: Callable[[int, int], None],
        failed: Callable[[Finished], None],
        *,
        script: str = 'echo "$0"; exec "$@"',
        on_end: Callable[[Finished], None] = lambda finished: None,
    ) -> None:
        """Start a program there that is spoken to over its standard input and output.

        What a login shell prints before is left out. The connection ends with the last program that was started so.

        Args:
            argv: Its words.
            script: How it is started from them, for ``sh``; it prints ``$0`` before the program begins.
            on_end: Called with what it complained of when it ends after it has begun.
            started: Called with the descriptors to read from and to write to, which belong to the callee then. When
                they are closed, or the connection ends, the program sees the end of its input.
            failed: Called if it ends before it has begun: it was not found.
        """
        mark = _mark()
        read_end, child_output = os.pipe()
        child_input, write_end = os.pipe()
        command = login_shell.line(["sh", "-c", script, mark, *argv])
        child: Child | None = None
        begun = False

        def ended(code: int, errors: str) -> None:
            if child is not None:
                self._children.discard(child)
            finished = Finished(code=code, output=b"", errors=errors)
            if begun:
                on_end(finished)
            else:
                forget()
                if self._tells:
                    failed(finished)

        def forget() -> None:
            with contextlib.suppress(OSError):
                self._loop.remove_reader(read_end)
            os.close(read_end)
            os.close(write_end)

        said = bytearray()

        def read() -> None:
            """Read up to the mark and not further: what follows is the program's."""
            nonlocal begun
            while True:
                try:
                    data = os.read(read_end, 1)
                except BlockingIOError:
                    return
                if not data:  # its end is told
                    self._loop.remove_reader(read_end)
                    return
                said.extend(data)
                if said.endswith(f"{mark}\n".encode()):
                    begun = True
                    # From now on the connection lasts as long as the program: beyond a link that is cut, only sshd's
                    # own processes would not know.
                    if self._master is not None:
                        self._master.close_input()
                    self._loop.remove_reader(read_end)
                    started(read_end, write_end)
                    return

        os.set_blocking(read_end, False)
        child = Child(
            self._loop, [*self._words(master=False), command], None, ended, descriptors=(child_input, child_output)
        )
        os.close(child_input)
        os.close(child_output)
        if child.pid:
            self._children.add(child)
            self._loop.add_reader(read_end, read)

    def forward(self, here: Path, there: str, done: Callable[[Finished], None]) -> None:
        """Forward connections to a unix socket here to an address (``host:port``) as the machine sees it."""
        settings = [*self._connections.settings.words(forwards=True), "-o", f"ControlPath={self._socket}"]
        output = bytearray()
        Child(
            self._loop,
            [*settings, "-O", "forward", "-L", f"{here}:{there}", *self.destination.words()],
            output.extend,
            lambda code, errors: done(Finished(code=code, output=bytes(output), errors=errors)),
        )

    def forward_back(self, here: Path, done: Callable[[int, str], None]) -> None:
        """Forward connections to a free port of the machine's loopback address to a unix socket here.

        Args:
            here: The socket.
            done: Called with the port; with 0 and the reason if the machine does not do so.
        """
        settings = [*self._connections.settings.words(forwards=True), "-o", f"ControlPath={self._socket}"]
        output = bytearray()

        def ended(code: int, errors: str) -> None:
            port = bytes(output).strip()
            if code == 0 and port.isdigit():
                done(int(port), "")
            else:
                finished = Finished(code=code, output=bytes(output), errors=errors)
                done(0, f"its sshd does not forward ports (AllowTcpForwarding): {finished.last_line}")

        Child(
            self._loop,
            [*settings, "-O", "forward", "-R", f"127.0.0.1:0:{here}", *self.destination.words()],
            output.extend,
            ended,
        )

    @property
    def folder(self) -> Path:
        """A folder of this process's alone, for sockets."""
        return self._socket.parent

    def close(self) -> None:
        """End it and everything that goes through it."""
        if self._closed:
            return
        self._closed = True
        self.ended = self.ended or "the connection was closed"
        self._connections.forget(self)
        for child in list(self._children):
            child.kill()
        self._children.clear()
        if self._master is not None:
            self._master.kill()


def _mark() -> str:
    return f"fleetfit-{secrets.token_hex(8)}"
