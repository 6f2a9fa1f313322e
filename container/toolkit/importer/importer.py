"""Find the machine's importer for a host's toolkit, and start an importer if there is none.

An importer (``server.py`` in this folder) imports a script's packages once, and then forks ranks. The importer's socket
is in a folder that the machine's toolkits share. The socket's name depends on what is imported. The first of the
toolkits starts the importer. For each host, the machine's importer forks a host's importer, which ends with the host's
toolkit. The host's importer forks the ranks, which end with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from container.contract import variables
from container.contract.messages import Message
from container.system import importers, inherited, processes, sockets
from container.system.connection import Connection
from container.system.loop import Loop
from container.system.variables_read import is_read_at_load
from container.toolkit.importer import client
from container.toolkit.importer.imports import SLOW, Imports

if TYPE_CHECKING:
    from container.toolkit.process_group import GangFollower

#: Variables that change what Python does besides running the script. Ranks with such a variable are not forked.
_OF_PYTHON = frozenset(("PYTHONHOME", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONSAFEPATH", "PYTHONVERBOSE"))
#: Variables that the toolkit sets for the rank wrapper, and that the wrapper does not pass to its command.
_WRAPPERS = {
    *(variables.CODE_DIR, variables.PIPE_CHANNELS, variables.PLACE, variables.SHARED_MEMORY_DIR, variables.UMASK)
}
#: Variables that the toolkit sets for ranks, and that the importer's interpreter also needs when it starts.
_SET_UP = (variables.EVIDENCE, variables.PLACE_FD, variables.STACK_SIGNAL)
#: How long the host's importer may take to end, in seconds.
_END_S = 2.0


def is_worth_it(imports: Imports, environment: Mapping[str, str]) -> bool:
    """Return whether it saves time to import a script's packages once for all ranks. Pure."""
    asked = environment.get(variables.FORK)
    return asked != "0" and bool(imports.packages if asked == "1" else imports.packages & SLOW)


def refusal(command: Sequence[str], environment: Mapping[str, str], python: str) -> str:
    """Return why an importer cannot fork ranks for a command. Return an empty text if it can. Pure.

    Args:
        command: The entry point's command.
        environment: The environment of all ranks of the host.
        python: The interpreter of the toolkit and the importer.
    """
    if not (len(command) > 1 and command[1].endswith(".py") and not command[1].startswith("-")):
        return "the entry point is not a Python file"
    if command[0] != python:
        return "the script and the toolkit run under different interpreters"
    return next((f"{name} is set" for name in sorted(_OF_PYTHON & environment.keys())), "")


class Importer:
    """The toolkit's connection to the machine's importer, and to the importer of this host.

    Args:
        loop: The event loop.
        folder: The folder of the machine's importers.
        path: The path of the socket to which the host's rank wrappers connect. This object creates the socket.
        python: The interpreter of the ranks.
        env: The variables of all ranks of the host.
        imports: The imports to execute.
        follower: The receiver of the importer's messages about imports.
        keep: The time for which the machine's importer continues when no toolkit needs it, in seconds.
        keep_with: The pid of a process whose end also ends an importer that is kept; 0 for none.

    Attributes:
        pid: During the imports, the pid of the machine's importer. Afterwards, the pid of this host's importer. None if
            there is no such process.
        root: The pid of the machine's importer, if this toolkit has started it. Otherwise None.
        imported: Whether the imports are finished, so that ranks can be forked.

    Raises:
        OSError: the importer could not be started.
    """

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        path: Path,
        python: str,
        env: Mapping[str, str],
        imports: Imports,
        follower: GangFollower,
        *,
        keep: float = 0.0,
        keep_with: int = 0,
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._follower = follower
        self._environment = {name: value for name, value in env.items() if is_read_at_load(name) or name in _SET_UP}
        # Without the code folder, which differs between jobs and hosts.
        path_of_ranks = [one for one in env["PYTHONPATH"].split(os.pathsep) if one != env[variables.CODE_DIR]]
        self._environment["PYTHONPATH"] = os.pathsep.join(path_of_ranks)
        self._command = [python, str(Path(__file__).with_name("__main__.py")), *sorted(imports.packages)]
        self._place = folder / _name(self._command, self._environment, imports)
        self._request = {
            **dataclasses.asdict(imports),
            "cwd": env[variables.CODE_DIR],
            "environment": {
                name: value
                for name, value in env.items()
                if name not in _WRAPPERS and not name.startswith(variables.USERS_PREFIX)
            },
            "holder": os.getppid() or os.getpid(),
            "keep": keep,
            "keep_with": [keep_with] if keep_with else [],
        }
        self.pid: int | None = None
        self.root: int | None = None
        self.imported = False
        self._host: tuple[int, int] | None = None  # the host's importer: a descriptor, and its pid
        self._listener = sockets.listen(path)
        try:
            self._connection = self._connect()
        except OSError:
            self._listener.close()
            raise

    def _connect(self) -> Connection:
        """Send a request to the machine's importer. If there is no importer, start one first."""
        with importers.locked(self._folder):
            try:
                sock, is_new = sockets.connect(self._place), False
            except OSError:
                sock, is_new = self._start(), True
            self.pid = importers.noted_pid(self._place)
            client.ask(sock, self._request, [self._listener.fileno()])
        return Connection(self._loop, sock, self._take, lambda reason: self._closed(is_new), key=None)

    def _start(self) -> socket.socket:
        """Start the machine's importer, and return a connection to it."""
        self._place.unlink(missing_ok=True)
        with sockets.listen(self._place) as listener:
            fd = listener.fileno()
            pid = processes.spawn(
                self._command,
                env={**self._environment, variables.IMPORTER: f"{fd}:{self._place}"},
                cwd=self._request["cwd"],
                # Python examines its standard output at its start: like a rank's pipe, a socket cannot be rewound.
                stdout=fd,
                stderr=fd,
                pass_fds=(fd,),
                new_session=True,
            )
            self.root = pid
            self._loop.on_child(pid, lambda status: self._root_ended(pid))
            importers.note(self._place, pid, [], None)
            return sockets.connect(self._place)

    def _root_ended(self, pid: int) -> None:
        if self.root == pid:
            self.root = None
        importers.forget(self._place)  # a killed importer leaves its files; a newer importer's files are kept

    def _take(self, message: Message) -> None:
        if pid := message.pop("hosting", None):
            self.pid = pid
            with contextlib.suppress(ProcessLookupError):  # it was killed, which the end of the connection will show
                self._host = os.pidfd_open(pid), pid
            self.imported = True
            self._listener.close()
        self._follower.on_importer(message)
        if "unfit" in message:
            self._give_up()

    def _closed(self, is_new: bool) -> None:
        if self.imported:
            self.pid = None
        elif is_new:
            self._follower.on_importer({"unfit": "the importer ended before it had imported"})
            self._give_up()
        else:  # the importer has ended regularly, or its imports do not fit
            try:
                self._connection = self._connect()
            except OSError:
                self._give_up()

    def _give_up(self) -> None:
        """Stop using an importer. Each rank then imports its packages itself."""
        self.pid = None
        self._connection.close()
        self._listener.close()

    @property
    def spared(self) -> tuple[int, ...]:
        """Return the child processes that outlive this toolkit. This is the machine's importer, if this toolkit has
        started it, and its imports are finished. Other toolkits can then use it.
        """
        return (self.root,) if self.root is not None and self.imported else ()

    def end(self, *, orderly: bool) -> None:
        """Stop the host's importer and all its descendants.

        Args:
            orderly: Whether the machine's importer may be kept.
        """
        if orderly and self.imported:
            self._connection.send({"op": "end"})
        if not orderly and self.root is not None:  # then the machine's importer ends with this toolkit
            importers.remove(self._place)
        self._connection.close()
        self._listener.close()

    def await_end(self) -> list[int]:
        """Wait until the host's importer has ended. Return the pids of processes that could not be ended."""
        if self._host is None:
            return []
        (process, pid), self._host = self._host, None
        left = processes.end_tree(process, pid, patience=_END_S)
        os.close(process)
        return left


def _name(command: Sequence[str], environment: Mapping[str, str], imports: Imports) -> str:
    """Return the name of an importer with the given properties: 24 hexadecimal digits.

    The name also depends on properties that this process has inherited, such as its cores and limits, and on the files
    of this package, so that another version of fleetfit has other importers.
    """
    import hashlib  # imported here because it runs in parallel with the start of a job

    code = [file.stat().st_mtime_ns for file in sorted(Path(__file__).parent.glob("*.py"))]
    about = [command, environment, inherited.traits(os.getpid()), imports.statements, imports.settings, code]
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=12).hexdigest()
