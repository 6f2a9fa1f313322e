"""Run a job's processes on one machine, and kill their descendants.

The caller is code in this process, or a supervisor on a different machine that is connected to this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from container.contract import variables
from container.contract.failures import Failure
from container.contract.frozen import dataclass
from container.system import folders, importers, processes
from container.system.connection import BACKLOG
from container.system.link import HostLink
from container.system.loop import Loop
from container.system.removing import remove_tree

_READ_SIZE = 1 << 18


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """The way in which a process on a host ended.

    Attributes:
        exit_code: The exit code of the process. None if it did not exit.
        signal: The number of the signal that killed the process. None if no signal killed it.
        error: The reason why the process could not be started. None if it was started.
        failure: The cause of the process's end if the host itself knows the cause, for example that a container ran out
            of memory.
    """

    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    failure: Failure | None = None


class OutputFollower(Protocol):
    """A receiver of a process's output and of its end."""

    def on_output(self, data: bytes, /) -> object:
        """Handle data that the process has written to its standard output."""

    def on_errors(self, data: bytes, /) -> object:
        """Handle data that the process has written to its standard error, if standard error is separate from the
        output.
        """

    def over(self, end: ProcessEnd, /) -> object:
        """Handle the end of the process. The method is called once, after all output was handled."""


class Runner:
    """Start processes, and report their output and their ends to followers (:class:`OutputFollower`).

    Importers are processes that have imported packages, and from which ranks are forked.

    Args:
        loop: The loop of this process. This process must be a subreaper.
        environment: The variables that all processes get.
        protected: The pids of children of this process that are not killed with the job's processes. The runner adds
            the pids of importers that are kept for later jobs (see :mod:`container.system.importers`).
        readers: The loop or link that reads the output. If None, ``loop``.
    """

    def __init__(
        self,
        loop: Loop,
        environment: Mapping[str, str],
        *,
        protected: set[int] | None = None,
        readers: HostLink | None = None,
    ) -> None:
        self._loop = loop
        self._environment = environment
        self._protected = protected if protected is not None else set()
        self._readers = readers or loop
        self._listener: socket.socket | None = None
        self._importers: Path | None = None
        self._kept: Path | None = None
        self.running: set[RunningProcess] = set()

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        follower: OutputFollower,
        *,
        cwd: Path,
        apart: bool = False,
        lifeline: str | None = None,
        listener: str | None = None,
        runtime: str | None = None,
        session: bool = False,
        tidies: bool = False,
    ) -> RunningProcess:
        """Start a process. If the process cannot be started, report the reason to the follower.

        Args:
            argv: The command.
            env: The environment variables of the process, in addition to those that all processes get.
            follower: The receiver of the process's output and of its end.
            cwd: The working directory of the process.
            apart: Whether the follower gets standard error separately from standard output.
            lifeline: The name of the environment variable that passes the descriptor of a lifeline to the process. The
                lifeline is a pipe to which :meth:`RunningProcess.write` writes, and which is closed when this process
                ends. A process without a lifeline gets a signal when this process ends (see ``tidies``).
            listener: The name of the environment variable that passes the descriptor of the socket from :meth:`listen`.
            runtime: The name of the environment variable that passes the path of a private folder for sockets. The
                folder is removed when the process has ended.
            session: Whether the process gets a session of its own.
            tidies: Whether the process gets SIGTERM instead of SIGKILL when this process ends, so that it can clean up.
        """
        environment = {**self._environment, **env}
        passed: list[int] = []
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            try:
                folder = None
                if runtime:
                    folder = folders.make() / "host"
                    ours.callback(_tidy, folder)
                    folder.mkdir(mode=0o700)
                    environment[runtime] = str(folder)
                    environment[variables.IMPORTERS] = str(self._folder_of_importers(env.get(variables.KEPT_FOR)))
                input_read, input_write = _pipe(theirs, ours)
                output_read, output_write = _pipe(ours, theirs)
                errors_read, errors_write = _pipe(ours, theirs) if apart else (-1, output_write)
                if lifeline:
                    environment[lifeline] = str(input_read)
                    passed.append(input_read)
                if listener and self._listener is not None:
                    taken, self._listener = theirs.enter_context(self._listener), None
                    environment[listener] = str(taken.fileno())
                    passed.append(taken.fileno())
                pid = processes.spawn(
                    argv,
                    env=environment,
                    cwd=cwd,
                    stdin=None if lifeline else input_read,
                    stdout=output_write,
                    stderr=errors_write,
                    pass_fds=passed,
                    # A process with a lifeline must end its children before it ends. A process that tidies gets
                    # SIGTERM.
                    death_signal=0 if lifeline else signal.SIGTERM if tidies else signal.SIGKILL,
                    blocked=(signal.SIGTERM,) if tidies else (),
                    new_session=session,
                    new_group=True,
                )
            except OSError as error:
                end = ProcessEnd(error=f"{error.filename or argv[0]}: {error.strerror}")
                self._loop.call_later(0.0, lambda: follower.over(end))
                return RunningProcess(self._loop, -1, -1, None)
            ours.pop_all()
        process = RunningProcess(self._loop, pid, input_write, folder)
        self.running.add(process)
        process.outputs.append(_Output(self._readers, output_read, follower.on_output))
        if apart:
            process.outputs.append(_Output(self._readers, errors_read, follower.on_errors))
        self._loop.on_child(pid, lambda status: self._ended(process, status, follower, leads=bool(lifeline)))
        return process

    def _ended(self, process: RunningProcess, status: int, follower: OutputFollower, *, leads: bool) -> None:
        exit_code, killed_by = processes.decode_status(status)
        self.running.discard(process)
        process.ended = True
        process.close_input()
        if leads and killed_by is not None:
            # The killed process could not end its children. This process, a subreaper, has adopted them.
            self.abort(self.running)
        if leads and self._kept is not None:
            self._protected.update(importers.pids(self._kept))
            importers.forget_ended(self._kept)
        for output in process.outputs:
            output.drain()
        process.tidy()
        follower.over(ProcessEnd(exit_code=exit_code, signal=killed_by))

    def abort(self, spare: Collection[RunningProcess] = ()) -> None:
        """Kill all processes of the job with SIGKILL, except the protected processes and those in ``spare``."""
        spared = {*self._protected, *(process.pid for process in spare)}
        # importers that other jobs' hosts use may be among the descendants; a host's own importer ends with its toolkit
        for folder in (self._importers, self._kept):
            spared.update(importers.pids(folder) if folder is not None else ())
        self._loop.end_descendants(spare=spared)

    def _folder_of_importers(self, whose: str | None) -> Path:
        if whose:
            self._kept = folders.of_importers(whose)
            return self._kept
        if self._importers is None:
            self._importers = folders.unmade()
        return self._importers

    def close(self) -> None:
        """Remove the folder with the sockets of the job's own importers. No process may be running at this time."""
        if self._importers is not None:
            remove_tree(self._importers, ignore_errors=True)

    def listen(self, address: str) -> int:
        """Open a socket that listens at a free port. The next process that is run with ``listener`` gets the socket.

        Returns:
            The number of the port.

        Raises:
            OSError: the address does not belong to this machine.
        """
        if self._listener is not None:
            self._listener.close()
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(BACKLOG)
        port: int = self._listener.getsockname()[1]
        return port


class _Output:
    """The output that a process writes to one descriptor. The descriptor is closed at the end of the output."""

    def __init__(self, readers: Loop | HostLink, fd: int, take: Callable[[bytes], object]) -> None:
        self._readers = readers
        self._fd = fd
        self._take = take
        os.set_blocking(fd, False)
        readers.add_reader(fd, self.read)

    def read(self) -> bool:
        """Read some of the output, and return whether any output was available."""
        try:
            data = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return False
        if data:
            self._take(data)
        else:
            self._close()
        return bool(data)

    def drain(self) -> None:
        """Read the output that is available now, and close the descriptor. The process must have ended.

        Any later output would come from another process that has inherited the descriptor.
        """
        while self._fd >= 0 and self.read():
            pass
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            self._readers.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class RunningProcess:
    """A process that a :class:`Runner` has started. After the end of the process, data and signals for it are dropped.

    Attributes:
        pid: The pid of the process; -1 if it could not be started.
        ended: Whether this program knows that the process has ended.
        outputs: The standard output of the process and, if it is read separately, its standard error.
    """

    def __init__(self, loop: Loop, pid: int, input_fd: int, runtime: Path | None) -> None:
        self._loop = loop
        self.pid = pid
        self.ended = pid < 0
        self._runtime = runtime
        self._input = input_fd
        self._unwritten = bytearray()
        self._closing = False
        self.outputs: list[_Output] = []
        if input_fd >= 0:
            os.set_blocking(input_fd, False)

    def write(self, data: bytes) -> None:
        """Send data to the process's standard input or lifeline. Return without waiting until the process reads it."""
        if self._input >= 0:
            self._unwritten += data
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unwritten:
                with memoryview(self._unwritten) as view:
                    written = os.write(self._input, view)
                del self._unwritten[:written]
        except BlockingIOError:
            self._loop.add_writer(self._input, self._flush)
            return
        except OSError:  # the process no longer reads its input
            self._unwritten.clear()
        self._loop.remove_writer(self._input)
        if self._closing:
            self._close()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def tidy(self) -> None:
        """Remove the process's private folder, and its folder in shared memory."""
        _tidy(self._runtime)

    def close_input(self) -> None:
        """Close the process's standard input or lifeline, as soon as all data is written."""
        self._closing = True
        if self._input >= 0 and (self.ended or not self._unwritten):
            self._close()

    def _close(self) -> None:
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reading.callback(os.close, read)
    writing.callback(os.close, write)
    return read, write


def _tidy(runtime: Path | None) -> None:
    if runtime is not None:
        remove_tree(runtime.parent, ignore_errors=True)
        remove_tree(Path(folders.SHARED_MEMORY, f"{runtime.parent.name}-{runtime.name}"), ignore_errors=True)
