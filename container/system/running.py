"""Run processes for a job on one machine, and end what they leave: for whoever asks, from here or over a connection."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from container.contract import variables
from container.contract.failures import Failure
from container.system import folders, importers, processes
from container.system.connection import BACKLOG
from container.system.loop import Loop
from container.system.removing import remove_tree

_LOOK_S = 0.01
_READ_SIZE = 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How a process on a host ended.

    Attributes:
        exit_code: Its exit status, if it exited.
        signal: The signal that killed it, if one did.
        error: Why it could not be started.
        failure: The cause of its end, if the host itself knows it (a container that ran out of memory, say).
    """

    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    failure: Failure | None = None


class Runner:
    """Starts processes, gives what they print and how they end.

    Args:
        loop: The loop of this process, which is a subreaper.
        environment: The variables that all of them have.
        protected: Other children of this process, which are never ended with the job's; importers that are kept for
            other jobs are put there.
        add_source: Reads a descriptor when there is something; default: the loop's.
        remove_source: Reads it no more.
    """

    def __init__(
        self,
        loop: Loop,
        environment: Mapping[str, str],
        *,
        protected: set[int] | None = None,
        add_source: Callable[[int, Callable[[], None]], None] | None = None,
        remove_source: Callable[[int], None] | None = None,
    ) -> None:
        self._loop = loop
        self._environment = environment
        self._protected = protected if protected is not None else set()
        self._add_source = add_source or loop.add_reader
        self._remove_source = remove_source or loop.remove_reader
        self._listener: socket.socket | None = None
        self._importers: Path | None = None
        self._kept: Path | None = None
        self.running: set[RunningProcess] = set()

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Callable[[bytes], None],
        on_exit: Callable[[ProcessEnd], None],
        *,
        cwd: Path,
        lifeline: str | None = None,
        listener: str | None = None,
        runtime: str | None = None,
        session: bool = False,
        tidies: bool = False,
        on_errors: Callable[[bytes], None] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> RunningProcess:
        """Start a process; see :meth:`estimators.backends.hosts.provider.Host.run`."""
        environment = {**self._environment, **env}
        folder: Path | None = None
        fds: list[int] = []
        try:
            if runtime:
                folder = folders.make() / "host"
                folder.mkdir(mode=0o700)
                environment[runtime] = str(folder)
                environment[variables.IMPORTERS] = str(self._folder_of_importers(env.get(variables.KEPT_FOR)))
            for _ in range(3 if on_errors is not None else 2):
                fds += os.pipe()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            _tidy(folder)
            return self._not_started(error, argv, on_exit)
        input_read, input_write, output_read, output_write = fds[:4]
        errors_read, errors_write = fds[4:] or (-1, output_write)
        passed = list(pass_fds)
        if lifeline:
            environment[lifeline] = str(input_read)
            passed.append(input_read)
        taken: socket.socket | None = None
        if listener:
            taken, self._listener = self._listener, None
        if listener and taken is not None:
            environment[listener] = str(taken.fileno())
            passed.append(taken.fileno())
        try:
            pid = processes.spawn(
                argv,
                env=environment,
                cwd=cwd,
                stdin=None if lifeline else input_read,
                stdout=output_write,
                stderr=errors_write,
                pass_fds=passed,
                # One with a lifeline has to end what it started first; one that tidies waits for the signal.
                death_signal=0 if lifeline else signal.SIGTERM if tidies else signal.SIGKILL,
                blocked=(signal.SIGTERM,) if tidies else (),
                new_session=session,
                new_group=True,
            )
        except OSError as error:
            for fd in (input_write, output_read, errors_read):
                if fd >= 0:
                    os.close(fd)
            _tidy(folder)
            return self._not_started(error, argv, on_exit)
        finally:
            for fd in {input_read, output_write, errors_write}:
                os.close(fd)
            if taken is not None:
                taken.close()
        process = RunningProcess(self._loop, pid, input_write, folder)
        self.running.add(process)
        self._follow(process, output_read, on_output)
        if on_errors is not None:
            self._follow(process, errors_read, on_errors)
        leads = bool(lifeline)
        self._loop.on_child(pid, lambda status: self._ended(process, status, on_exit, leads=leads))
        return process

    def _not_started(
        self, error: OSError, argv: Sequence[str], on_exit: Callable[[ProcessEnd], None]
    ) -> RunningProcess:
        end = ProcessEnd(error=f"{error.filename or argv[0]}: {error.strerror}")
        self._loop.call_later(0.0, lambda: on_exit(end))
        return RunningProcess(self._loop, -1, -1, None)

    def _follow(self, process: RunningProcess, fd: int, on_output: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)

        def read() -> bool:
            try:
                data = os.read(fd, _READ_SIZE)
            except BlockingIOError:
                return False
            if data:
                on_output(data)
                return True
            close()
            return False

        def close() -> None:
            if fd in process.outputs:
                del process.outputs[fd]
                self._remove_source(fd)
                os.close(fd)

        def read_one() -> None:
            read()

        process.outputs[fd] = (read, close)
        self._add_source(fd, read_one)

    def _ended(
        self, process: RunningProcess, status: int, on_exit: Callable[[ProcessEnd], None], *, leads: bool
    ) -> None:
        exit_code, killed_by = processes.decode_status(status)
        self.running.discard(process)
        process.ended = True
        process.close_input()
        if leads and killed_by is not None:
            # It could not end what it had started; that was adopted by us, its subreaper.
            self.abort(self.running)
        if leads and self._kept is not None:
            self._protected.update(importers.pids(self._kept))
            importers.forget_ended(self._kept)
        for read, close in list(process.outputs.values()):
            while read():
                pass
            close()
        process.tidy()
        on_exit(ProcessEnd(exit_code=exit_code, signal=killed_by))

    def abort(self, spare: Collection[RunningProcess] = ()) -> None:
        """SIGKILL to everything of the job but some processes."""
        spared = {*self._protected, *(process.pid for process in spare)}
        for folder in (self._importers, self._kept):  # others' hosts may be below; a host's end with its toolkit
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
        """Remove what was made for all processes; none of them runs any more."""
        if self._importers is not None:
            remove_tree(self._importers, ignore_errors=True)

    def listen(self, address: str) -> int:
        """Listen at a free port, for a process that is then run with ``listener``.

        Raises:
            OSError: the address is not of this machine.
        """
        if self._listener is not None:
            self._listener.close()
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(BACKLOG)
        port: int = self._listener.getsockname()[1]
        return port

    def await_files(
        self, paths: Sequence[Path], done: Callable[[str | None], None], wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Call back when files are there, unless that is not wanted any more."""
        if all(path.exists() for path in paths):
            done(None)
        elif wanted():
            self._loop.call_later(_LOOK_S, lambda: self.await_files(paths, done, wanted))


class RunningProcess:
    """A process that was started here. What is told to one that has ended is dropped.

    Attributes:
        pid: Its number.
        ended: Whether its end is known.
        outputs: Descriptor -> what reads a piece of it, and what closes it.
    """

    def __init__(self, loop: Loop, pid: int, input_fd: int, runtime: Path | None) -> None:
        self._loop = loop
        self.pid = pid
        self.ended = pid < 0
        self._runtime = runtime
        self._input = input_fd
        self._unwritten = bytearray()
        self._closing = False
        self.outputs: dict[int, tuple[Callable[[], bool], Callable[[], None]]] = {}
        if input_fd >= 0:
            os.set_blocking(input_fd, False)

    def write(self, data: bytes) -> None:
        """Give it something to read."""
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
        except OSError:  # it reads no more
            self._unwritten.clear()
        self._loop.remove_writer(self._input)
        if self._closing:
            self._close()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def tidy(self) -> None:
        """Remove what it has left of its private folder."""
        _tidy(self._runtime)

    def close_input(self) -> None:
        """End what it reads."""
        self._closing = True
        if self._input >= 0 and (self.ended or not self._unwritten):
            self._close()

    def _close(self) -> None:
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1


def _tidy(runtime: Path | None) -> None:
    if runtime is not None:
        remove_tree(runtime.parent, ignore_errors=True)
        remove_tree(Path(folders.SHARED_MEMORY, f"{runtime.parent.name}-{runtime.name}"), ignore_errors=True)
