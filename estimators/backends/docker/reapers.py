"""A supervisor's side of the reapers: the processes that remove a job's containers whatever becomes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from container.system import processes
from container.system.loop import Loop

#: The folder of our packages.
_ROOT = Path(__file__).resolve().parents[3]
_REAPER = "estimators.backends.docker.reaper"
#: It waits before it imports anything: a job that starts wants the cores for itself.
_BOOT = """\
import sys
said = sys.stdin.buffer.read()
import importlib
sys.exit(importlib.import_module(sys.argv[1]).main(said, sys.argv[2]))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Duty:
    """What a reaper does when its supervisor is over.

    Attributes:
        label: Everything with this label and ``value`` is removed from the engine.
        value: A record's folder, or a pool's.
        remove: Folders that are removed too.
        image: The image whose tools give files back.
        trees: Folders of the job alone: what containers wrote there becomes the calling user's.
        shared: Folders that others use too: only what is root's or the image's user's.
    """

    label: str
    value: str
    remove: tuple[str, ...] = ()
    image: str = ""
    trees: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def to_text(self) -> str:
        """As it is handed to the process; :meth:`from_text` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Duty:
        """Read it.

        Raises:
            ValueError: it is something else.
        """
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()
        }
        return cls(**values)


class Reapers:
    """The reapers of one job: each outlives the supervisor, and one that is killed is replaced.

    Args:
        loop: The supervisor's loop.
        protected: The supervisor's children that are left alone at its end.
        log: Where they say what goes wrong.
    """

    def __init__(self, loop: Loop, protected: set[int], log: Path) -> None:
        self._loop = loop
        self._protected = protected
        self._log = log
        self._running: dict[int, tuple[Duty, int]] = {}  # pid -> its duty and the pipe that it reads
        self._over = False

    def __bool__(self) -> bool:
        return bool(self._running)

    def start(self, duty: Duty) -> None:
        """Start one.

        Raises:
            OSError: it cannot be.
        """
        read_end, write_end = os.pipe()
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        try:
            pid = processes.spawn(
                [sys.executable, "-c", _BOOT, _REAPER, duty.to_text()],
                env=environment,
                cwd="/",
                stdin=read_end,
                stdout=log,
                stderr=log,
                death_signal=0,  # it is there to outlive us
                new_session=True,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
            os.close(log)
        self._running[pid] = (duty, write_end)
        self._protected.add(pid)

        def ended(status: int) -> None:
            self._protected.discard(pid)
            if self._over:
                return
            os.close(self._running.pop(pid)[1])
            with contextlib.suppress(OSError):  # somebody killed it
                self.start(duty)

        self._loop.on_child(pid, ended)

    def finish(self, *, quiet: bool, kept: Path | None) -> None:
        """Let them do their duty.

        Args:
            quiet: Whether nothing is being made on the engine any more.
            kept: The pool that is for the next job.
        """
        self._over = True
        for duty, pipe in self._running.values():
            word = b"keep\n" if kept is not None and duty.value == str(kept) else b"done\n" if quiet else b""
            with contextlib.suppress(OSError):
                os.write(pipe, word)
            os.close(pipe)
        self._running.clear()
