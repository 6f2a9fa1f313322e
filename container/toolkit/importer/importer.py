"""Find the machine's importer for a host's toolkit, and start an importer if there is none.

An importer (``server.py`` in this folder) imports a script's packages once, and then forks ranks. The importer's socket
is in a folder that the machine's toolkits share. The socket's name depends on what is imported. The first of the
toolkits starts the importer. For each host, the machine's importer forks a host's importer, which ends with the host's
toolkit. The host's importer forks the ranks, which end with the host's importer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from container.contract import variables
from container.contract.messages import Message
from container.system import importers, inherited, processes, sockets
from container.system.connection import Connection, ask
from container.system.loop import Loop
from container.system.variables_read import is_read_at_load
from container.toolkit.importer.imports import SLOW, Imports

if TYPE_CHECKING:
    from container.toolkit.process_group import GangFollower

#: Variables that change what Python does besides running the script. Ranks with such a variable are not forked.
_OF_PYTHON = frozenset(("PYTHONHOME", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONSAFEPATH", "PYTHONVERBOSE"))
#: Variables that the toolkit sets for ranks, and that the importer's interpreter also needs when it starts.
_SET_UP = (variables.EVIDENCE, variables.PLACE_FD, variables.STACK_SIGNAL)
#: How long the host's importer may take to end, in seconds.
_END_S = 2.0


def is_worth_it(imports: Imports, environment: Mapping[str, str]) -> bool:
    """Return whether to start an importer: whether the script imports a slow package. Pure.

    The variable ``variables.FORK`` overrides this rule: with "1", an importer is started for any package, and with "0",
    no importer is started.
    """
    asked = environment.get(variables.FORK)
    return asked != "0" and bool(imports.packages if asked == "1" else imports.packages & SLOW)


def refusal(command: Sequence[str], environment: Mapping[str, str], python: str) -> str:
    """Return why an importer cannot fork ranks for a command. Return an empty text if the importer can. Pure.

    Args:
        command: The entry point's command.
        environment: The environment of all ranks of the host.
        python: The interpreter of the toolkit and the importer.
    """
    if command[0] != python or not command[1].endswith(".py"):
        return "the entry point is not a Python file"
    return next((f"{name} is set" for name in sorted(_OF_PYTHON & environment.keys())), "")


class Importer:
    """The toolkit's connection to the machine's importer, and to the importer of this host.

    Args:
        loop: The event loop.
        folder: The folder of the machine's importers.
        path: The path of the socket to which this host's rank wrappers connect, the programs that start the ranks. This
            object creates the socket.
        python: The interpreter of the ranks.
        env: The variables of all ranks of the host.
        imports: The imports to execute.
        follower: The receiver of the importer's messages about imports.
        keep: The time for which the machine's importer continues when no toolkit needs it, in seconds.
        keep_with: The pid of a process. When it ends, an importer that is kept ends, too. 0 for none.

    Attributes:
        pid: During the imports, the pid of the machine's importer. Afterwards, the pid of this host's importer. None if
            there is no such process.
        root: The pid of the machine's importer, if this toolkit has started it. Otherwise None.
        imported: Whether the imports are finished, so that ranks can be forked.

    If the importer cannot be started, or ends before it has finished the imports, the follower gets a message with the
    reason, and each rank imports its packages itself.

    Raises:
        OSError: the socket cannot be created.
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
        self._loop, self._folder, self._follower = loop, folder, follower
        self._code = env[variables.CODE_DIR]
        self._environment = {name: value for name, value in env.items() if is_read_at_load(name) or name in _SET_UP}
        # Without the code folder, which differs between jobs and hosts.
        path_of_ranks = [one for one in env["PYTHONPATH"].split(os.pathsep) if one != self._code]
        self._environment["PYTHONPATH"] = os.pathsep.join(path_of_ranks)
        self._command = [python, str(Path(__file__).with_name("__main__.py")), *sorted(imports.packages)]
        self._place = folder / _name(self._command, self._environment, imports)
        self._request = {
            **imports._asdict(),
            "cwd": self._code,
            "environment": dict(env),
            "holder": os.getppid() or os.getpid(),
            "keep": keep,
            "keep_with": keep_with,
        }
        self.pid: int | None = None
        self.root: int | None = None
        self.imported = False
        self._host: tuple[int, int] | None = None  # the host's importer: a descriptor, and its pid
        self._open = contextlib.ExitStack()
        self._listener = self._open.enter_context(sockets.listen(path))
        self._connect()

    def _connect(self) -> None:
        """Connect to the machine's importer, and send this toolkit's request."""
        try:
            with importers.locked(self._folder):
                sock = self._reach()
                self.pid = importers.noted_pid(self._place)
                ask(sock, self._request, [self._listener.fileno()])
        except OSError as error:
            self._give_up(f"{error.filename or 'it'} could not be started: {error.strerror or error}")
        else:
            self._connection = Connection(self._loop, sock, self._take, self._closed, key=None)
            self._open.callback(self._connection.close)

    def _reach(self) -> socket.socket:
        """Return a connection to the machine's importer. If there is no importer, start one."""
        with contextlib.suppress(OSError):
            return sockets.connect(self._place)
        self._place.unlink(missing_ok=True)
        with sockets.listen(self._place) as listener:
            fd = listener.fileno()
            env = {**self._environment, variables.IMPORTER: f"{fd}:{self._place}"}
            # Python examines its standard output at its start: like a rank's pipe, a socket cannot be rewound.
            pid = processes.spawn(
                self._command, env=env, cwd=self._code, stdout=fd, stderr=fd, pass_fds=(fd,), new_session=True
            )
            self.root = pid
            importers.note(self._place, pid, [], None)
            return sockets.connect(self._place)

    def _take(self, message: Message) -> None:
        if message.get("op") == "forked":
            self.pid = int(message["pid"])
            with contextlib.suppress(ProcessLookupError):  # it was killed, which the end of the connection will show
                self._host = os.pidfd_open(self.pid), self.pid
            self.imported = True
            self._listener.close()
        elif "unfit" in message:
            self._give_up(message["unfit"])
        else:
            self._follower.on_importer(message)

    def _closed(self, reason: str) -> None:
        if self.imported:
            self.pid = None
        elif self.pid == self.root:
            self._give_up("the importer ended before it had imported")
        else:  # another toolkit's importer, which has ended regularly, or whose imports do not fit
            self._connect()

    def _give_up(self, why: str) -> None:
        self.pid = None
        self._open.close()
        self._follower.on_importer({"unfit": why})

    @property
    def spared(self) -> tuple[int, ...]:
        """Return the pids of the child processes that continue to run after the end of this toolkit.

        The only such process is the machine's importer, if this toolkit has started the importer, and the imports are
        finished. Other toolkits can then use the importer.
        """
        return (self.root,) if self.root is not None and self.imported else ()

    def end(self, *, orderly: bool) -> list[int]:
        """Stop the host's importer and all its descendants, and wait until they have ended.

        Args:
            orderly: Whether the machine's importer may be kept.

        Returns:
            The pids of processes that could not be ended.
        """
        if orderly and self.imported:
            self._connection.send({"op": "end"})
        if not orderly and self.root is not None and importers.noted_pid(self._place) == self.root:
            importers.remove(self._place)  # then the machine's importer ends with this toolkit
        self._open.close()
        if self._host is None:
            return []
        (process, pid), self._host = self._host, None
        left = processes.end_tree(process, pid, patience=_END_S)
        os.close(process)
        return left


def _name(command: Sequence[str], environment: Mapping[str, str], imports: Imports) -> str:
    """Return the name of an importer with the given properties: 24 hexadecimal digits.

    The name also depends on properties that this process has inherited, such as its cores and limits.
    """
    import hashlib  # imported here because it runs in parallel with the start of a job

    about = [command, environment, inherited.traits(os.getpid()), imports.statements, imports.settings]
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=12).hexdigest()
