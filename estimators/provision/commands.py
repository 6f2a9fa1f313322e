"""Run a command, append its output to a log file, and pass each line on as soon as it is printed."""

from __future__ import annotations

import collections
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.system.processes import set_death_signal

_TAIL_LINES = 4000
_INTERRUPT_GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """The result of a command.

    Attributes:
        returncode: The command's exit code.
        lines: The last lines of the command's output, without line ends.
    """

    returncode: int
    lines: tuple[str, ...]


def run(
    argv: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    inherit: Sequence[int] = (),
    on_line: Callable[[str], None] = lambda line: None,
) -> CommandResult:
    """Run a command until it exits. If this process is interrupted or killed, the command is terminated.

    Args:
        argv: The command, which runs without a shell and without standard input.
        log: The file to which the whole output is appended.
        environment: The command's complete environment.
        inherit: The file descriptors that stay open in the command, such as the descriptors of locks.
        on_line: The function that is called with each line of the output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
    with log.open("ab") as sink:
        sink.write(f"$ {' '.join(argv)}\n".encode())
        sink.flush()
        # Because of the new session, Ctrl-C reaches only this process. This process then terminates the command's
        # processes.
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=tuple(inherit),
            start_new_session=True,
            preexec_fn=functools.partial(set_death_signal, signal.SIGTERM, os.getpid()),
        ) as process:
            assert process.stdout is not None
            try:
                for raw in process.stdout:
                    sink.write(raw)
                    line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
                    tail.append(line)
                    on_line(line)
                returncode = process.wait()
            except BaseException:
                _end_group(process)
                raise
    return CommandResult(returncode=returncode, lines=tuple(tail))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process group.

    SIGINT is sent first, so that pip undoes an incomplete installation. SIGKILL is sent to the remaining processes when
    the command has exited, or after 5 seconds.
    """
    for signum, grace_s in ((signal.SIGINT, _INTERRUPT_GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
