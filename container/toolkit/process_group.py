"""Start and observe the processes of one host, and send signals to the processes.

Each process that runs the user's script has a rank wrapper (:mod:`container.toolkit.rank`): a small program that starts
the process and reports its end. The wrapper is started by the toolkit or by mpirun. Rank wrappers and mpirun's remote
shell (:mod:`container.toolkit.mpi.rsh`) connect to the host's unix socket. The socket is in a folder that only the user
can enter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from container.contract import variables
from container.contract.messages import Message
from container.contract.plan import ProcessPlan, Role
from container.system import processes
from container.system.connection import Connection
from container.system.loop import Loop
from container.toolkit import hangs
from container.toolkit import rank as rank_wrapper
from container.toolkit.importer import importer
from container.toolkit.importer.imports import Imports
from container.toolkit.mpi import daemons
from container.toolkit.output import EventStream, Output, OutputStream

#: How long to wait after a wrapper has ended without a report, in seconds. Such a wrapper was killed. By the end of the
#: wait, the toolkit knows whether mpirun was killed, which would explain the wrapper's end.
_VANISHED_AFTER = 0.15


@dataclasses.dataclass
class ClusterProcess:
    """A process of the job on this host. The attributes describe the current state of the process.

    Attributes:
        name: The name of the process, such as ``rank 0``, ``ps`` or ``mpirun``.
        role: The purpose of the process.
        rank: The rank of the process. None if the process is not a rank.
        pid: The pid of the command. None before its start.
        importing: Whether the wrapper has connected, and has requested the process from the importer.
        ended: Whether the process has ended.
        exit_code: The exit code of the process. None if the process did not exit.
        signal: The number of the signal that killed the process. None if no signal killed the process.
        told: Whether the process or its wrapper was requested to end (by SIGTERM) before the process ended.
        vanished: Whether the wrapper of the process has ended without a report.
        importer_gone: Whether the process has ended because its importer was killed.
        start_error: The reason why the command could not be started. None if the command was started.
        exception: An uncaught exception of this process or of a child process, as ``{pid, type, message, traceback}``.
            None if no exception was reported.
        max_rss_kb: The peak memory of the process in KiB.
        revivals: The number of times the process was restarted.
        shell: Whether the command is a shell script.
        servers: The pids of this rank's processes that have reported that they only serve other ranks.
    """

    name: str
    role: Role
    rank: int | None = None
    pid: int | None = None
    importing: bool = False
    ended: bool = False
    exit_code: int | None = None
    signal: int | None = None
    told: bool = False
    vanished: bool = False
    importer_gone: bool = False
    start_error: str | None = None
    exception: dict[str, Any] | None = None
    max_rss_kb: int | None = None
    revivals: int = 0
    shell: bool = False
    servers: set[Any] = dataclasses.field(default_factory=set)
    started_at: float | None = None
    stream: OutputStream | None = None
    events: EventStream | None = None
    stalls: hangs.StallWarnings = dataclasses.field(default_factory=hangs.StallWarnings)
    wrapper: Connection | None = None
    wrapper_pid: int | None = None
    place: Message | None = None  # the rank's variables, for a wrapper that has not connected yet

    @property
    def running(self) -> bool:
        """Return whether the process has started and not ended."""
        return self.pid is not None and not self.ended

    @property
    def waits_for_importer(self) -> bool:
        """Return whether the process waits for an importer that has not finished importing."""
        return self.importing and self.pid is None and not self.ended

    @property
    def serving(self) -> bool:
        """Return whether the process only serves other processes, and no longer trains. If the process is a shell,
        check its child processes instead.
        """
        if not self.running or not self.servers:
            return False
        waited_for = processes.children_by_parent().get(self.pid or 0, []) if self.shell else [self.pid]
        return self.servers.issuperset(waited_for)

    @property
    def raised(self) -> bool:
        """Return whether the process itself has reported an uncaught exception. Reports of its child processes do not
        count.
        """
        return self.exception is not None and self.exception.get("pid") == self.pid

    @property
    def failed(self) -> bool:
        """Return whether the process was killed by a signal, or exited with a code other than 0."""
        return self.ended and self.exit_code != 0


class GangFollower:
    """A receiver of events about the processes of a host. A subclass overrides the methods that it needs."""

    def on_importing(self, member: ClusterProcess) -> None:
        """Handle a process that waits for its importer."""

    def on_started(self, member: ClusterProcess) -> None:
        """Handle a process that has started."""

    def on_exception(self, member: ClusterProcess) -> None:
        """Handle a process that has reported an uncaught exception."""

    def on_serving(self, member: ClusterProcess) -> None:
        """Handle a rank that has reported that it now only serves other ranks."""

    def on_event(self, member: ClusterProcess, values: dict[str, Any]) -> None:
        """Handle any other report of a process."""

    def on_ended(self, member: ClusterProcess) -> None:
        """Handle a process that has ended."""

    def on_importer(self, message: Message) -> None:
        """Handle a message of the importer."""

    def on_activity(self) -> None:
        """Handle the fact that a rank has printed or reported something, which shows progress."""

    def on_remote_shell(self, connection: Connection, host: str, argv: list[str]) -> None:
        """Handle the request of mpirun's remote shell to run a command on a host."""
        connection.close()


class Gang:
    """The job's processes on this host. The gang starts them, observes them, and sends signals to them.

    Args:
        loop: The event loop.
        output: The object that writes the processes' output.
        follower: The receiver of events about the processes.
        host: The name of this host.
        runtime_dir: The host's private folder.
        environment: The environment variables that all processes of the host get.
        python: The interpreter for the rank wrapper.
        package: The folder of the ``container`` package.
    """

    def __init__(
        self,
        loop: Loop,
        output: Output,
        follower: GangFollower,
        *,
        host: str,
        runtime_dir: Path,
        environment: Mapping[str, str],
        python: str,
        package: str,
    ) -> None:
        self._loop = loop
        self._output = output
        self._follower = follower
        self._host = host
        self._runtime_dir = runtime_dir
        self.environment = dict(environment)
        self._wrapper = (python, "-I", "-S", os.path.join(package, "__main__.py"), "rank", "--")
        self.members: dict[str, ClusterProcess] = {}
        self._ending = False
        self._importer: importer.Importer | None = None
        #: Whether the process that started the toolkit still runs; if not, no importer is kept for other toolkits.
        self.is_followed = True
        self._has_own_importer = False
        self.socket_path = runtime_dir / "host.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket_path))
        self._listener.listen(256)
        self._listener.setblocking(False)
        loop.add_reader(self._listener.fileno(), self._accept)

    # --- starting ---

    def expect(self, plan: ProcessPlan) -> ClusterProcess:
        """Register a process that the toolkit or mpirun will start. The wrapper of the process will connect to the
        host's socket.
        """
        member = self.members[plan.name] = ClusterProcess(
            name=plan.name, role=plan.role, rank=plan.rank, shell=rank_wrapper.is_shell(plan.argv)
        )
        return member

    def leave_command(self, argv: tuple[str, ...]) -> None:
        """Write this host's command into a file, for the ranks that mpirun starts here. See ``rank.host_command``.

        Raises:
            OSError: the file cannot be written.
        """
        (self._runtime_dir / rank_wrapper.COMMAND_FILE).write_bytes(b"\0".join(os.fsencode(word) for word in argv))

    def start_importer(
        self,
        command: Sequence[str],
        imports: Imports,
        variables_of_ranks: Mapping[str, str],
        *,
        elastic: bool,
        folder: Path | None,
        keep: float,
        keep_with: int,
    ) -> None:
        """Start an importer if the script imports slow packages. The importer imports them once, and forks this host's
        ranks. See :mod:`container.toolkit.importer`.

        If the importer cannot be started, or has ended, each rank imports its packages itself.

        Args:
            command: The command of the ranks.
            imports: The imports to execute.
            variables_of_ranks: The variables that ranks get in addition to the host's environment.
            elastic: Whether ranks get some of their variables only when their script requests its rank.
            folder: The folder of the machine's importers, which all hosts on the machine share. None for an importer
                that only this host uses.
            keep: The time for which the machine's importer is kept while no toolkit uses it, in seconds.
            keep_with: The pid of a process. When it ends, an importer that is kept ends, too. 0 for none.
        """
        why = imports.reason
        if is_worth_it := importer.is_worth_it(imports, self.environment):
            why = importer.refusal(command, self.environment, self._wrapper[0])
        if why and self.environment.get(variables.FORK) != "0":
            self._follower.on_importer({"unfit": why})
        if why or not is_worth_it:
            return
        env = {**self.environment, **variables_of_ranks, **({variables.PLACE_FD: "-1"} if elastic else {})}
        path = self._runtime_dir / rank_wrapper.IMPORTER
        self._has_own_importer = folder is None
        try:
            self._importer = importer.Importer(
                self._loop,
                folder or self._runtime_dir,
                path,
                command[0],
                env,
                imports,
                self._follower,
                keep=keep,
                keep_with=keep_with,
            )
        except OSError as error:
            self._follower.on_importer({"unfit": f"{path} cannot be created: {error.strerror}"})

    @property
    def importer(self) -> int | None:
        """Return the pid of the process that imports packages for the ranks, or that now forks the ranks.

        Return None if there is no such process.
        """
        return self._importer.pid if self._importer is not None else None

    def launch(self, plan: ProcessPlan) -> ClusterProcess:
        """Start the rank wrapper, which starts the planned process."""
        member = self.expect(plan)
        env = {**self.environment, **plan.environment, **self._links(), rank_wrapper.PROCESS: plan.name}
        if plan.local_rank is not None:
            env[variables.LOCAL_RANK] = str(plan.local_rank)
        pid = processes.spawn([*self._wrapper, *plan.argv], env=env, cwd=env["PWD"])
        member.wrapper_pid = pid
        self._loop.on_child(pid, lambda status: self._wrapper_ended(member))
        return member

    def launch_bare(self, name: str, role: Role, argv: list[str], environment: Mapping[str, str]) -> ClusterProcess:
        """Start a program without the rank wrapper (mpirun, orted), and print the program's output with the given name.

        Raises:
            OSError: the program could not be started.
        """
        member = self.members[name] = ClusterProcess(name=name, role=role)
        read_end, write_end = os.pipe()
        env = {**self.environment, **environment, **self._links()}
        try:
            member.pid = processes.spawn(argv, env=env, cwd=env["PWD"], stdout=write_end, stderr=write_end)
        except OSError:
            os.close(read_end)
            del self.members[name]
            raise
        finally:
            os.close(write_end)
        member.started_at = time.monotonic()
        member.stream = OutputStream(self._loop, self._output, read_end, self._host, name, words=daemons.Words())
        self._loop.on_child(member.pid, lambda status: self._bare_ended(member, status))
        return member

    def _links(self) -> dict[str, str]:
        return {variables.HOST_SOCKET: str(self.socket_path)}

    # --- ending ---

    def signal_all(self, number: int, roles: tuple[Role, ...] = (Role.RANK, Role.SERVER)) -> None:
        """Send a signal to every running process with one of the given roles, through the wrapper if the process has
        one.
        """
        for member in list(self.members.values()):
            if member.role in roles and member.running:
                if member.wrapper is not None:
                    member.wrapper.send({"op": "signal", "number": int(number)})
                elif member.pid is not None and member.role is Role.LAUNCHER:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(member.pid, number)

    def stop_ranks(self) -> None:
        """Send SIGTERM to every running rank. Afterwards, no exit code of a rank counts as a failure."""
        for member in self.ranks:
            member.told = True
        self.signal_all(signal.SIGTERM, (Role.RANK,))

    def signal(self, member: ClusterProcess, number: int) -> None:
        """Send the signal ``number`` to a process, through its wrapper."""
        if member.wrapper is not None and not member.ended:
            member.wrapper.send({"op": "signal", "number": int(number)})

    def place(self, member: ClusterProcess, environment: Mapping[str, str]) -> None:
        """Send the variables that contain a rank to a process that was started without one (``variables.PLACE``).

        If the process's wrapper has not connected yet, the variables are sent when it connects.
        """
        place = {"op": "place", "environment": dict(environment)}
        if member.wrapper is None:
            member.place = place
        else:
            member.wrapper.send(place)

    def release_one(self, member: ClusterProcess) -> None:
        """Allow a wrapper to exit. The wrapper waits for this permission after the end of its command."""
        if member.wrapper is not None:
            member.wrapper.send({"op": "release"})

    def release(self) -> None:
        """Allow all wrappers to exit. A wrapper waits for this permission after the end of its command."""
        for member in self.members.values():
            self.release_one(member)

    def kill(self) -> list[int]:
        """Send SIGKILL to all descendants of this process except :attr:`spared`, wait until they have ended, and read
        the remaining output.

        Returns:
            The pids of processes that could not be killed.
        """
        self._ending = True
        left = self._importer.end(orderly=self.is_followed) if self._importer is not None else []
        left += self._loop.end_descendants(spare=self.spared)
        for member in self.members.values():
            if member.stream is not None:
                member.stream.finish()
            if member.events is not None:
                member.events.finish()
        return left

    @property
    def spared(self) -> Collection[int]:
        """Return the pids of the child processes that continue to run after the end of the toolkit."""
        if self._importer is None or self._has_own_importer or not self.is_followed:
            return ()
        return self._importer.spared

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self.socket_path.unlink()

    # --- current processes ---

    @property
    def ranks(self) -> list[ClusterProcess]:
        """Return the processes that run the user's script."""
        return [member for member in self.members.values() if member.role is Role.RANK]

    @property
    def all_ended(self) -> bool:
        """Return whether all started processes have ended.

        mpirun and its daemons do not count, because they have nothing to save.
        """
        return not any(member.running for member in self.members.values() if member.role is not Role.LAUNCHER)

    # --- wrappers ---

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        connection = Connection(self._loop, sock, lambda message: None, lambda reason: None, descriptors=2)
        connection.received = lambda message: self._introduced(connection, message)

    def _introduced(self, connection: Connection, message: Message) -> None:
        """Handle the first message of a connection: it says whether the peer is a rank wrapper or mpirun's remote
        shell. Close the connection of any other peer.
        """
        match message:
            case {"op": "rank", "name": str(name), "pid": int(pid)}:
                self._attach(connection, name, pid)
            case {"op": "rsh", "host": str(host), "argv": [*argv]}:
                self._follower.on_remote_shell(connection, host, [str(word) for word in argv])
            case _:
                connection.close()

    def _attach(self, connection: Connection, name: str, pid: int) -> None:
        member = self.members.get(name)
        descriptors = connection.take_descriptors()
        if member is None or member.wrapper is not None or self._ending or len(descriptors) != 2:
            # An unexpected or late wrapper: it ends when its connection is closed.
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()
            return
        printed, reported = descriptors
        member.wrapper = connection
        member.wrapper_pid = pid
        member.stream = OutputStream(
            self._loop, self._output, printed, self._host, name, printed=functools.partial(self._printed, member)
        )
        member.events = EventStream(self._loop, self._output, reported, lambda values: self._rank_event(member, values))
        connection.received = lambda message: self._from_wrapper(member, message)
        connection.closed = lambda reason: self._wrapper_closed(member)
        if member.place is not None:
            connection.send(member.place)

    def _from_wrapper(self, member: ClusterProcess, message: Message) -> None:
        match message["op"]:
            case "importing":
                member.importing = True
                self._follower.on_importing(member)
            case "started":
                member.pid = int(message["pid"])
                member.started_at = time.monotonic()
                self._follower.on_started(member)
            case "failed":
                member.start_error = f"{os.strerror(int(message['errno']))}: {message['path']}"
                member.exit_code = 127
                self._ended(member)
            case "ended":
                member.exit_code = message["exit_code"]
                member.signal = message["signal"]
                member.told = member.told or bool(message["told"])
                member.max_rss_kb = int(message["max_rss_kb"])
                member.importer_gone = bool(message.get("importer_gone"))
                self._ended(member)

    def _wrapper_closed(self, member: ClusterProcess) -> None:
        member.wrapper = None
        if not member.ended:
            self._loop.call_later(_VANISHED_AFTER, lambda: self._vanished(member))

    def _wrapper_ended(self, member: ClusterProcess) -> None:
        """Handle the end of a wrapper that the toolkit has started.

        Normally the wrapper has already reported the end of its command. A wrapper that never connected counts as
        vanished.
        """
        if not member.ended and member.wrapper is None:
            self._loop.call_later(_VANISHED_AFTER, lambda: self._vanished(member))

    def _vanished(self, member: ClusterProcess) -> None:
        if not member.ended and member.wrapper is None:
            member.vanished = True
            member.signal = signal.SIGKILL
            self._ended(member)

    def _ended(self, member: ClusterProcess) -> None:
        if member.ended:
            return
        member.ended = True
        if member.events is not None:
            member.events.finish()
        if member.failed and member.stream is not None:
            member.stream.finish()
        self._follower.on_ended(member)

    def _bare_ended(self, member: ClusterProcess, status: int) -> None:
        member.exit_code, member.signal = processes.decode_status(status)
        if member.stream is not None:
            member.stream.finish()
        self._ended(member)

    def _printed(self, member: ClusterProcess, pieces: list[bytes], rest: bytes) -> None:
        if member.stalls.is_progress(pieces, rest):
            self._follower.on_activity()

    def _rank_event(self, member: ClusterProcess, values: dict[str, Any]) -> None:
        self._follower.on_activity()
        if values.get("kind") == "exception" and isinstance(values.get("data"), dict):
            member.exception = values["data"]
            self._follower.on_exception(member)
        elif values.get("kind") == "serving" and isinstance(values.get("data"), dict):
            member.servers.add(values["data"].get("pid"))
            self._follower.on_serving(member)
        elif values.get("kind") != "importing":  # "importing" only shows activity
            self._follower.on_event(member, values)


#: Prefixes of the variables that a surrounding MPI job has set, and that would disturb our MPI job. Variables that
#: users set (OMPI_MCA_btl …) do not match, and are kept.
_FOREIGN_MPI = ("PMIX_", "PRTE_", "ORTE_", "OMPI_COMM_", "OMPI_UNIVERSE_", "OMPI_FILE_", "OMPI_FIRST_", "OMPI_APP_",
                "OMPI_ARGV", "OMPI_COMMAND", "OMPI_NUM_", "OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_MCA_pmix",
                "OMPI_MCA_initial_")  # fmt: skip


def base_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with the variables in ``extra``. The toolkit's own variables are removed."""
    env = {name: value for name, value in os.environ.items() if _passes(name)}
    env.update(extra)
    env.setdefault("PYTHONUNBUFFERED", "1")  # so that output appears when it is printed, not when a buffer is full
    env["PATH"] = os.pathsep.join(dict.fromkeys([os.path.dirname(sys.executable), *_paths(env.get("PATH"))]))
    return env


def _passes(name: str) -> bool:
    return name not in variables.TOOLKIT_ONLY and not name.startswith(_FOREIGN_MPI)


def _paths(value: str | None) -> list[str]:
    return [path for path in (value or os.defpath).split(os.pathsep) if path]
