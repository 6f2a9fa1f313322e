"""Runs a command with its output in a log file and each line handed on as it comes."""

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
    """How a command ended. ``lines`` are the last ones of its output, without line ends."""

    returncode: int
    lines: tuple[str, ...]


def run(
    argv: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    directory: Path | None = None,
    inherit: Sequence[int] = (),
    on_line: Callable[[str], None] = lambda line: None,
) -> CommandResult:
    """Run a command to its end; when this process is interrupted or dies, the command ends too.

    Args:
        argv: The command, run without a shell and without stdin.
        log: File that gets the whole output, appended.
        environment: All of its environment.
        directory: Its working directory.
        inherit: Descriptors it keeps open, such as locks.
        on_line: Called with each line of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
    with log.open("ab") as sink:
        sink.write(f"$ {' '.join(argv)}\n".encode())
        sink.flush()
        # A session of its own: Ctrl-C reaches this process only, which then ends the whole group in order.
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
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
    """SIGINT first: pip then rolls a half-made installation back."""
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
