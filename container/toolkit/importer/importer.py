"""The machine's importer, as a toolkit finds or starts it.

It is ``hook/_fleetfit_importer.py``, and lies in a folder that the machine's toolkits share, under a name made of what
it imports; the first of them starts it. Each host has a fork of it, which runs for as long as its toolkit, whose death
ends it, and its own death ends the ranks that were forked from it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from container.contract import variables
from container.contract.messages import Message
from container.system import importers, processes
from container.system.connection import Connection
from container.system.loop import Loop
from container.toolkit.importer.client import traits

#: What takes so long to import that it is worth a process.
SLOW = frozenset(("horovod", "jax", "keras", "tensorflow", "tf_keras", "torch"))

#: What the toolkit tells a wrapper, and not its command.
_WRAPPERS = frozenset(
    (
        variables.CODE_DIR,
        variables.PIPE_CHANNELS,
        variables.PLACE,
        variables.SHARED_MEMORY_DIR,
        variables.UMASK,
        variables.USERS_OPEN_FILES,
        variables.USERS_TMPDIR,
    )
)


def is_wanted(command: Sequence[str], environment: Mapping[str, str], python: str, packages: Collection[str]) -> bool:
    """Return whether ranks with this command may be forked from one that imports for them. Pure.

    The importer runs under the toolkit's own Python, started by the rank's own command: that this reaches the hook is
    known of no other.

    Args:
        command: The entry point's.
        environment: What all ranks of the host get.
        python: The toolkit's interpreter.
        packages: What they import.
    """
    asked = environment.get(variables.FORK)
    return (
        asked != "0"
        and (bool(packages) if asked == "1" else not SLOW.isdisjoint(packages))
        and command[0] == python
        and len(command) > 1
        and command[1].endswith(".py")
        and not command[1].startswith("-")
        and not any(name.startswith("PYTHON") and name not in _KNOWN for name in environment)
    )


#: Variables for Python that change nothing of what is relied on here.
_KNOWN = frozenset(
    (
        "PYTHONBREAKPOINT",  # Ray sets it in whoever connects to it
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONFAULTHANDLER",
        "PYTHONHASHSEED",
        "PYTHONIOENCODING",
        "PYTHONNOUSERSITE",
        "PYTHONPATH",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUNBUFFERED",
        "PYTHONUTF8",
        "PYTHONWARNINGS",
    )
)


class Importer:
    """This host's importer.

    Args:
        loop: The loop that drives it.
        folder: Where the machine's importers are.
        path: Where the host's socket is to be.
        command: The ranks' command.
        env: What all ranks of the host get.
        request: What the importer is to do, as :data:`variables.IMPORTER` has it, as far as it is not known here.
        received: Called with what it tells, beside its operations.

    Attributes:
        pid: Who imports, then the host's own importer, while one is there.
        root: The machine's importer, if this toolkit has started it.
        imported: Whether ranks are forked.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        path: Path,
        command: Sequence[str],
        env: Mapping[str, str],
        request: Mapping[str, Any],
        received: Callable[[Message], None],
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._env = {name: value for name, value in env.items() if name not in _WRAPPERS}
        self._env = {name: value for name, value in self._env.items() if not name.startswith(variables.USERS_PREFIX)}
        code = env[variables.CODE_DIR]
        self._request = {
            **request,
            "argv": list(command),
            "cwd": code,
            "code": code,
            "environment": self._env,
            "traits": traits(),
            "holder": os.getppid() or os.getpid(),
            "place": str(folder / _name(command[0], code, self._env, request)),
        }
        self._received = received
        self.pid: int | None = None
        self.root: int | None = None
        self.imported = False
        self._told = False  # why there is none
        self._host: tuple[int, int] | None = None  # the host's importer: a descriptor, and its pid
        self._connection: Connection | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
            self._listener.listen(256)
            self._ask(anew=False)
        except OSError:
            self._listener.close()
            raise

    def _ask(self, *, anew: bool) -> None:
        """Ask the machine's importer; start it where there is none, or it is known not to do."""
        with _locked(self._folder) as folder, contextlib.ExitStack() as stack:
            # Another of the job's hosts may have started one meanwhile, instead of what refused both.
            refused = anew and _pid(self._request["place"]) in (None, self.pid)
            sock = None if refused else _connect(self._request["place"])
            fresh = sock is None
            if sock is None:
                self.root = self._start(folder)
                sock = _connect(self._request["place"])
            if sock is None:
                raise OSError("nobody takes the importer's connections")
            self.pid = self.root if fresh else _pid(self._request["place"])
            request = _in_memory(self._request)
            stack.callback(os.close, request)
            holder = os.pidfd_open(self._request["holder"])
            stack.callback(os.close, holder)
            socket.send_fds(sock, [b"{}\n"], [request, self._listener.fileno(), holder])
        self._connection = Connection(
            self._loop, sock, self._take, lambda reason: self._closed(again=not fresh), key=None
        )

    def _start(self, folder: Path) -> int:
        """Start the machine's importer; returns its pid."""
        place = Path(self._request["place"])
        described = _in_memory(self._request)
        told, output = os.pipe()  # Python looks at its standard output when it starts, and a rank's is a pipe
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                place.unlink(missing_ok=True)
                listener.bind(str(place))
                listener.listen(256)
                env = {**self._env, variables.IMPORTER: f"{listener.fileno()}:{described}"}
                if self._request["elastic"]:
                    env[variables.PLACE_FD] = "-1"
                pid = processes.spawn(
                    self._request["argv"],
                    env=env,
                    cwd=self._request["cwd"],
                    stdout=output,
                    stderr=output,
                    pass_fds=(listener.fileno(), described),
                    new_session=True,
                )
            finally:
                for fd in (described, told, output):
                    os.close(fd)
        facts = {"pid": pid, "packages": [], "until": None, "keep": 0.0}
        place.with_name(f"{place.name}.json").write_text(json.dumps(facts), encoding="utf-8")
        self._loop.on_child(pid, lambda status: self._root_ended(pid))
        return pid

    def _root_ended(self, pid: int) -> None:
        if self.root == pid:
            self.root = None
        importers.forget(Path(self._request["place"]))  # killed, it could not; another's that is there now stays

    def _take(self, message: Message) -> None:
        operation = message.get("op")
        if operation == "hosting":
            self.pid = int(message["pid"])
            with contextlib.suppress(ProcessLookupError):  # killed already, which the connection's end will tell
                self._host = os.pidfd_open(self.pid), self.pid
            self.imported = True
            self._listener.close()
        elif operation == "refused":  # what there is will not do, or not any more
            self._drop()
            self._try_anew()
        else:
            self._told = self._told or "unfit" in message
            self._received(message)

    def _closed(self, *, again: bool) -> None:
        self._connection = None
        if self.imported:
            self.pid = None
        elif again and not self._told:  # it had come to its end
            self._try_anew()
        else:
            if not self._told:
                self._received({"unfit": "the importer ended before it had imported"})
            self.give_up()

    def _try_anew(self) -> None:
        try:
            self._ask(anew=True)
        except OSError:
            self.give_up()

    def give_up(self) -> None:
        """Each rank imports by itself."""
        self._drop()
        self.pid = None
        self._listener.close()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def spared(self) -> tuple[int, ...]:
        """What outlives this toolkit, of its children: an importer that has imported, where others can find it."""
        return (self.root,) if self.root is not None and self.imported else ()

    def end(self, *, orderly: bool) -> None:
        """Tell the host's importer to end, with everything below it.

        Args:
            orderly: Whether the machine's may be kept.
        """
        if orderly and self.imported and self._connection is not None:
            self._connection.send({"op": "end"})
        if not orderly and self.root is not None:  # which ends with this toolkit then
            place = Path(self._request["place"])
            for file in (place, place.with_name(f"{place.name}.json")):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others' are there
                self._folder.rmdir()
        self._drop()
        self._listener.close()

    def await_end(self) -> list[int]:
        """Wait until it has ended.

        Returns:
            Pids that would not go.
        """
        if self._host is None:
            return []
        (process, pid), self._host = self._host, None
        poll = select.poll()
        poll.register(process, select.POLLIN)
        left = [] if poll.poll(_END_S * 1000) else processes.end_tree(process, pid)
        os.close(process)
        return left


#: How long the host's importer may take to end, in seconds.
_END_S = 2.0
#: What the importer does not import anything by, where it differs between hosts and between jobs.
_PASSING = frozenset(
    (
        *("CURRENT_HOST", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "SAGEMAKER_BASE_DIR", "SAGEMAKER_JOB_NAME"),
        *("SAGEMAKER_REGION", "SHLVL", "TF_CONFIG", "TMPDIR", "XDG_SESSION_ID", "_"),
    )
)
_PASSING_PREFIXES = ("FLEETFIT_", "SM_", "SSH_C", "TRAINING_JOB_")
#: What is set up before the imports, of the toolkit's.
_SET_UP = (variables.EVIDENCE, variables.STACK_SIGNAL)


def _name(python: str, code: str, environment: Mapping[str, str], request: Mapping[str, Any]) -> str:
    """Return what an importer is called that does this: 24 letters and digits. Pure but for the cores."""
    import hashlib  # a job's start waits for what is imported

    about = {name: value for name, value in environment.items() if name not in _PASSING}
    about = {name: value for name, value in about.items() if not name.startswith(_PASSING_PREFIXES)}
    about["PYTHONPATH"] = os.pathsep.join("" if one == code else one for one in about["PYTHONPATH"].split(os.pathsep))
    set_up = {name: environment.get(name) for name in _SET_UP}
    what = [python, about, set_up, {**traits(), "cwd": ""}, *(request[name] for name in _ABOUT)]
    return hashlib.blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=12).hexdigest()


_ABOUT = ("elastic", "on_use", "settings", "statements")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Hold the folder's lock: one importer is started where several toolkits need it."""
    there = False
    while not there:
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = -1
        with contextlib.suppress(FileNotFoundError):  # the last importer there has just removed it
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
            there = os.path.samestat(os.fstat(fd), folder.lstat())
        if not there and fd >= 0:
            os.close(fd)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "the folder must belong to this user and have mode 0700", str(folder))
        yield folder
    finally:
        os.close(fd)


def _connect(place: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(place)
    except OSError:
        sock.close()
        return None
    return sock


def _pid(place: str) -> int | None:
    try:
        return int(json.loads(Path(f"{place}.json").read_bytes())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def _in_memory(value: object) -> int:
    """Return a descriptor from which the value can be read as JSON."""
    fd = os.memfd_create("request")
    os.write(fd, json.dumps(value).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
