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
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from container.system import folders, processes
from container.system.loop import Loop
from container.system.removing import remove_tree
from estimators.job.errors import ConfigurationError

#: How many connections are made at once: sshd's ``MaxStartups`` drops logins from the tenth on.
AT_ONCE = 8
#: How a connection ends that nobody complained of, such as one whose program has ended.
CLOSED = "the connection was closed by the machine"
#: How often a login that sshd has dropped is tried again, and how long to wait before, in seconds; doubled each time.
_TRIES = 6
_WAIT_S = 0.2
#: How long a machine may take to answer at all, in seconds.
_CONNECT_S = 10
#: ssh asks the machine this often whether it is there, and gives up at the third silence: after 15 s.
_ALIVE_S, _ALIVE_COUNT = 5, 2
#: How much of what ssh complains of is kept, in bytes.
_KEPT = 16 << 10
_READ_SIZE = 1 << 18

#: What stands in ssh's complaints, why that is, and what to do about it; the first that is found counts. ``{host}`` is
#: the destination, ``{words}`` the user's own command line to try it with, ``{last}`` the complaint's last line.
_REASONS: tuple[tuple[str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another one than when it was first seen: the machine was set up anew, or another one answers "
        "in its place. If you know that it is right, forget the old key: {forget}",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "its host key, or that of a jump host on the way, is not known. Log in there once with `{words}` and accept "
        "the key",
    ),
    (
        r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
        "others can read the private key here, and ssh does not take such a key; chmod 600 it",
    ),
    (
        r"Too many authentication failures",
        "the agent offered more keys than it accepts; name the right one with IdentityFile and IdentitiesOnly=yes in "
        "the ssh configuration",
    ),
    (
        r"Permission denied",
        "the login was refused ({last}). It has to work without a question: `ssh-copy-id {host}` or `ssh-add`, then "
        "try `{words}`",
    ),
    (
        r"Could not resolve hostname|Name or service not known",
        "nobody knows the name. Check its spelling, or give it an address by HostName in the ssh configuration",
    ),
    (
        r"No route to host|Network is unreachable",
        "there is no route to it. Check the address, the network or VPN, and that the machine runs",
    ),
    (
        r"Connection timed out|Operation timed out|banner exchange",
        "it did not answer. Check the address, that the machine runs, and that a firewall lets ssh through",
    ),
    (
        r"Connection refused",
        "nothing listens at its ssh port. Check that sshd runs there, and the port",
    ),
    (
        r"Session open refused by peer|session request failed",
        "its sshd allows too few sessions in a connection; raise MaxSessions there",
    ),
    (
        r"[Bb]ad configuration option|terminating, \d+ bad|Can't open user config file|Bad owner or permissions on",
        "the ssh configuration is wrong: {last}",
    ),
    (
        r"Timeout, server .* not responding",
        "it has given no sign of life for 15 s",
    ),
    (
        r"kex_exchange_identification|Connection (closed|reset) by",
        "it closed the connection before the login. Too many log in at once (MaxStartups), or it bars this machine",
    ),
)
#: What sshd does to logins that are too many at once.
_DROPPED = re.compile(r"kex_exchange_identification|Connection (closed|reset) by|Exceeded MaxStartups")
#: What does not become better by itself while a machine starts.
_FINAL = re.compile(
    r"IDENTIFICATION HAS CHANGED|[Bb]ad configuration option|terminating, \d+ bad|Can't open user config|"
    r"UNPROTECTED PRIVATE KEY|Bad owner or permissions on"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SshSettings:
    """How a fleet's machines are reached.

    Attributes:
        known_hosts: The fleet's own file of host keys. One that is not there is made.
        config: A configuration file in place of ``~/.ssh/config``.
        strict: Whether only keys count that are in ``known_hosts`` already. Otherwise the key of a machine that is seen
            for the first time is taken and written there, and must be the same from then on.
        identity: A private key to log in with, and no other.
        options: More of ssh's options, as of its ``-o``: name -> value.
    """

    known_hosts: Path
    config: Path | None = None
    strict: bool = False
    identity: Path | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def words(self, *, level: str = "ERROR", forwards: bool = False) -> list[str]:
        """Return ssh's command line for a session without questions, up to the destination.

        Args:
            level: How much it says.
            forwards: Whether it asks for a forwarding; otherwise those of the configuration are left out.
        """
        own = [str(self.known_hosts)]
        if not self.strict:
            own += ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]
        options = {
            **self.options,
            "BatchMode": "yes",
            "UserKnownHostsFile": " ".join(f'"{path}"' for path in own),
            "StrictHostKeyChecking": "yes" if self.strict else "accept-new",
            "UpdateHostKeys": "no",
            "HashKnownHosts": "no",
            "ConnectTimeout": str(_CONNECT_S),
            "ServerAliveInterval": str(_ALIVE_S),
            "ServerAliveCountMax": str(_ALIVE_COUNT),
            "LogLevel": level,
            "RequestTTY": "no",
            "RemoteCommand": "none",
            "PermitLocalCommand": "no",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "ClearAllForwardings": "no" if forwards else "yes",
        }
        if self.strict:
            options["GlobalKnownHostsFile"] = "none"
        if self.identity is not None:
            options |= {"IdentityFile": f'"{self.identity}"', "IdentitiesOnly": "yes"}
        config = ["-F", str(self.config)] if self.config is not None else []
        return ["ssh", *config, *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Destination:
    """What ssh is told to connect to.

    Attributes:
        host: A name of the ssh configuration or of the network, or an address.
        user: The login; None: as ssh decides.
        port: The port; None: as ssh decides.
        options: Options of this machine alone, such as ``HostKeyAlias``: name -> value.
    """

    host: str
    user: str | None = None
    port: int | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.host or self.host.startswith("-") or re.search(r"[\s\0/@]", self.host):
            raise ConfigurationError(f"{self.host!r} is no name of a host: it must be a name or an address.")
        if self.user is not None and (not self.user or self.user.startswith("-") or re.search(r"[\s\0]", self.user)):
            raise ConfigurationError(f"{self.user!r} is no login name (of host {self.host!r}).")
        if self.port is not None and not 0 < self.port < 65536:
            raise ConfigurationError(f"{self.port} is no port (of host {self.host!r}).")

    def __str__(self) -> str:
        text = f"{self.user}@{self.host}" if self.user is not None else self.host
        return f"{text} (port {self.port})" if self.port is not None else text

    def words(self) -> list[str]:
        """Return its part of ssh's command line."""
        return [
            *(word for name, value in self.options.items() for word in ("-o", f"{name}={value}")),
            *(("-p", str(self.port)) if self.port is not None else ()),
            *(("-l", self.user) if self.user is not None else ()),
            "--",
            self.host,
        ]


def reason(complaint: str, settings: SshSettings, destination: Destination) -> str:
    """Return why ssh did not come through, and what to do, from what it wrote to its standard error."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip() and not line.startswith("Warning: Perm")]
    last = lines[-1] if lines else "ssh ended without a word"
    config = ["-F", str(settings.config)] if settings.config is not None else []
    words = shlex.join(["ssh", *config, *(word for word in destination.words() if word != "--"), "true"])
    offending = re.search(r"Offending \S+ key in (.+):(\d+)", complaint)
    file = offending[1] if offending else str(settings.known_hosts)
    alias = destination.options.get("HostKeyAlias", destination.host)
    if destination.port not in (None, 22) and "HostKeyAlias" not in destination.options:
        alias = f"[{destination.host}]:{destination.port}"
    known = {
        "host": f"{destination.user}@{destination.host}" if destination.user else destination.host,
        "words": words,
        "last": last.removeprefix("ssh: "),
        "forget": "`" + shlex.join(["ssh-keygen", "-R", alias, "-f", file]) + "`",
    }
    for pattern, text in _REASONS:
        if re.search(pattern, complaint):
            return text.format(**known)
    return known["last"]


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
        self._waiting: list[Connection] = []
        self._connecting: set[Connection] = set()
        self._open: set[Connection] = set()
        self._number = 0

    def open(
        self,
        destination: Destination,
        ready: Callable[[Connection], None],
        failed: Callable[[str], None],
        *,
        patience: float = 0.0,
    ) -> Connection:
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
        connection = Connection(self, destination, self._folder / str(self._number), ready, failed, patience)
        self._waiting.append(connection)
        self.loop.call_later(0, self._next)
        return connection

    def _next(self) -> None:
        while self._waiting and len(self._connecting) < AT_ONCE:
            connection = self._waiting.pop(0)
            self._connecting.add(connection)
            connection.connect()

    def connected(self, connection: Connection) -> None:
        """Count an attempt as over: it came through, or waits to be made again."""
        self._connecting.discard(connection)
        self._open.add(connection)
        self._next()

    def again(self, connection: Connection) -> None:
        """Have an attempt made once more."""
        self._waiting.append(connection)
        self._next()

    def forget(self, connection: Connection) -> None:
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


class Connection:
    """A machine that has accepted the login; see :meth:`Connections.open`.

    Attributes:
        destination: The machine.
        address: The machine's address as it sees the connection; "" where its sshd does not say.
        caller_address: This machine's, as the other sees it.
        on_lost: Called with the reason when the connection ends by itself; not after :meth:`close`.
        ended: Why it has ended, if it has.
    """

    def __init__(
        self,
        connections: Connections,
        destination: Destination,
        socket: Path,
        ready: Callable[[Connection], None],
        failed: Callable[[str], None],
        patience: float,
    ) -> None:
        self.destination = destination
        self.address = self.caller_address = ""
        self.on_lost: Callable[[str], None] = lambda text: None
        self.ended: str | None = None
        self._connections = connections
        self._loop = connections.loop
        self._socket = socket
        self._ready: Callable[[Connection], None] | None = ready
        self._failed = failed
        self._until = time.monotonic() + patience if patience else None
        self._tries = 0
        self._master: Child | None = None
        self._children: set[Child] = set()
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
        said = bytearray()

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
            elif not marked and len(said) > _KEPT:
                del said[:-64]

        self._master = Child(self._loop, argv, read, self._master_ended, keeps_input=True)

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
        if code == 0:
            text = "the login ended at once. Its shell has to run commands: `ssh HOST true`"
        patient = self._until is not None and time.monotonic() < self._until and not _FINAL.search(errors)
        self._connections.connected(self)
        if patient or (_DROPPED.search(errors) and self._tries < _TRIES):
            wait = min(_WAIT_S * 2 ** (self._tries - 1), 2.0 if patient else 30.0) * random.uniform(0.7, 1.3)
            self._loop.call_later(wait, lambda: None if self._closed else self._connections.again(self))
            return
        self.ended = text
        self.close()
        self._failed(text)

    # --- what goes through it ---

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
            done: Called with how it ended; not when the connection is closed before.
            source: A file or what its input is to be; None: nothing.
            on_output: Takes what it prints as it comes, in place of ``done``.
        """
        output = bytearray()
        child: Child | None = None

        def ended(code: int, errors: str) -> None:
            if child is not None:
                self._children.discard(child)
            if not self._closed:
                done(Finished(code=code, output=bytes(output), errors=errors))

        child = Child(
            self._loop, [*self._words(master=False), shlex.join(argv)], on_output or output.extend, ended, source=source
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
        command = shlex.join(["sh", "-c", script, mark, *argv])
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
                if not self._closed:
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
                done(0, f"its sshd does not forward (AllowTcpForwarding): {finished.last_line}")

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
        self.ended = self.ended or "it was closed"
        self._connections.forget(self)
        for child in list(self._children):
            child.kill()
        self._children.clear()
        if self._master is not None:
            self._master.kill()


def _mark() -> str:
    return f"fleetfit-{secrets.token_hex(8)}"


class Child:
    """A process that the loop follows: ssh's, or one that uses it.

    Args:
        loop: The loop.
        argv: Its command.
        on_output: Takes what it prints; None: it prints to one of ``descriptors``.
        on_end: Called with its exit status and what it complained of.
        keeps_input: Whether it gets an input that stays open until :meth:`kill`.
        source: What it reads: a file, or bytes.
        descriptors: Its standard input and output, if they are given.

    Attributes:
        pid: The process; 0 if it could not be started.
        errors: What it has complained of.
    """

    def __init__(
        self,
        loop: Loop,
        argv: Sequence[str],
        on_output: Callable[[bytes], object] | None,
        on_end: Callable[[int, str], None],
        *,
        keeps_input: bool = False,
        source: Path | bytes | None = None,
        descriptors: tuple[int, int] | None = None,
    ) -> None:
        self._loop = loop
        self._on_output = on_output
        self._on_end = on_end
        self.errors = bytearray()
        self._input = -1
        self._pending = memoryview(b"")
        self._status: int | None = None
        self._open: set[int] = set()
        self.pid = 0
        errors_read, errors_write = os.pipe()
        output_read, output_write = os.pipe() if descriptors is None else (-1, descriptors[1])
        stdin: int | None = None
        try:
            if descriptors is not None:
                stdin = descriptors[0]
            elif isinstance(source, Path):
                stdin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
            elif keeps_input or source is not None:
                stdin, self._input = os.pipe()
            self.pid = processes.spawn(
                argv, env=os.environ, stdin=stdin, stdout=output_write, stderr=errors_write, new_group=True
            )
        except OSError as error:
            for fd in (errors_read, output_read, self._input):
                if fd >= 0:
                    os.close(fd)
            self._input = -1
            text = f"{error.filename}: {error.strerror}"
            if isinstance(error, FileNotFoundError) and shutil.which("ssh") is None:
                text = "ssh is not installed on this machine; install it (apt-get install openssh-client)"
            loop.call_later(0, lambda: on_end(255, text))
            return
        finally:
            os.close(errors_write)
            if descriptors is None:
                os.close(output_write)
                if stdin is not None:
                    os.close(stdin)
        loop.on_child(self.pid, self._exited)
        self._follow(errors_read, self._complain)
        if on_output is not None and descriptors is None:
            self._follow(output_read, on_output)
        if isinstance(source, bytes):
            os.set_blocking(self._input, False)
            self._pending = memoryview(source)
            self._write()

    def _complain(self, data: bytes) -> None:
        self.errors += data
        del self.errors[:-_KEPT]

    def _follow(self, fd: int, take: Callable[[bytes], object]) -> None:
        os.set_blocking(fd, False)
        self._open.add(fd)

        def read() -> None:
            try:
                data = os.read(fd, _READ_SIZE)
            except BlockingIOError:
                return
            if data:
                take(data)
                return
            self._open.discard(fd)
            self._loop.remove_reader(fd)
            os.close(fd)
            self._tell()

        self._loop.add_reader(fd, read)

    def _write(self) -> None:
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._input, self._pending) :]
        except BlockingIOError:
            self._loop.add_writer(self._input, self._write)
            return
        except OSError:  # it reads no more
            pass
        self.close_input()

    def close_input(self) -> None:
        """End what it reads."""
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1

    def _exited(self, status: int) -> None:
        self._status = status
        self.close_input()
        self._tell()

    def _tell(self) -> None:
        """Tell the end when all that was printed has been read."""
        if self._status is not None and not self._open:
            code, number = processes.decode_status(self._status)
            self._on_end(code if code is not None else 128 + (number or 0), self.errors.decode(errors="replace"))

    def kill(self) -> None:
        """End it."""
        self.close_input()
        if self._status is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def resolved(settings: SshSettings, destination: Destination) -> dict[str, str]:
    """Return ssh's configuration of a machine as it comes of all files: ``hostname``, ``user``, ``port`` and more.

    Raises:
        ConfigurationError: ssh is not there, or its configuration is wrong.
    """
    words = [*settings.words(), "-G", *destination.words()]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        text = "ssh is not installed on this machine; install it (apt-get install openssh-client)."
        raise ConfigurationError(text) from None
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{destination}: `ssh -G` took over 30 s; see `Match exec` in its configuration."
        ) from None
    if done.returncode != 0:
        raise ConfigurationError(f"{destination}: {reason(done.stderr, settings, destination)}.")
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
