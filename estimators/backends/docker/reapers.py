"""A supervisor's side of its reaper: the process that removes a job's containers whatever becomes of the supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from container.system import locks, processes
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
    remove: Sequence[str] = ()
    image: str = ""
    trees: Sequence[str] = ()
    shared: Sequence[str] = ()

    def to_text(self) -> str:
        """Return the text that is handed to the process; :meth:`from_text` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Duty:
        """Read it.

        Raises:
            ValueError: it is something else.
        """
        return cls(**json.loads(text))


class Reaper:
    """The reaper of one job: it outlives the supervisor, and one that is killed is replaced.

    Args:
        loop: The supervisor's loop.
        protected: The supervisor's children that are left alone at its end.
        log: Where it says what goes wrong.
    """

    def __init__(self, loop: Loop, protected: set[int], log: Path) -> None:
        self._loop = loop
        self._protected = protected
        self._log = log
        self._pid = 0
        self._words = -1  # the descriptor on which it is told what becomes of the job

    def __bool__(self) -> bool:
        return self._words >= 0

    def start(self, duty: Duty, lock: Path | None = None) -> None:
        """Start it.

        Args:
            duty: What it does.
            lock: A file whose lock it holds.

        Raises:
            OSError: it cannot be.
        """
        with contextlib.ExitStack() as opened:
            read_end, write_end = os.pipe()
            opened.callback(os.close, read_end)
            log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, log)
            held = locks.take(lock) if lock is not None else None
            if held is not None:
                opened.callback(os.close, held)
            path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            try:
                pid = processes.spawn(
                    [sys.executable, "-c", _BOOT, _REAPER, duty.to_text()],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                    cwd="/",
                    stdin=read_end,
                    stdout=log,
                    stderr=log,
                    pass_fds=() if held is None else (held,),
                    death_signal=0,  # it is there to outlive us
                    new_session=True,
                )
            except OSError:
                os.close(write_end)
                raise
        self._pid, self._words = pid, write_end
        self._protected.add(pid)

        def ended(status: int) -> None:
            self._protected.discard(pid)
            if pid == self._pid:
                self._replace(duty, lock)

        self._loop.on_child(pid, ended)

    def take(self, connection: socket.socket, duty: Duty, lock: Path) -> None:
        """Have one that is there already: of a pool, which waits for its next job.

        Args:
            connection: To it.
            duty: What it does from now on.
            lock: The file whose lock it holds.
        """
        connection.sendall(f"{duty.to_text()}\n".encode())
        self._words = connection.detach()
        self._loop.add_reader(self._words, lambda: self._replace(duty, lock))  # it says nothing until it ends

    def _replace(self, duty: Duty, lock: Path | None) -> None:
        """Start another one: somebody killed it."""
        self.finish("")
        with contextlib.suppress(OSError):
            self.start(duty, lock)

    def finish(self, words: str) -> None:
        """Let it do its duty.

        Args:
            words: ``done``: nothing is being made on the engine any more. ``keep`` and seconds: the pool is for the
                next job. Nothing: none of that is known.
        """
        if self:
            descriptor, self._words, self._pid = self._words, -1, 0
            self._loop.remove_reader(descriptor)
            with contextlib.suppress(OSError):
                os.write(descriptor, words.encode())
            os.close(descriptor)
