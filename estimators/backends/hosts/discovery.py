"""Places that a script or a file names, in lines of Horovod's form: ``name`` or ``name:slots``.

So does the caller's function: its answers are put into a file.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

from container.system import processes
from container.system.loop import Loop
from estimators.backends.hosts.membership import MembershipListener, News

#: No blanks, control characters, or bytes that were no UTF-8.
_NAME = re.compile(r"[^\s\x00-\x20\x7f\ufffd]+")
#: How often a script is run, and how long it may take, in seconds.
SCRIPT_EVERY_S, SCRIPT_TIMEOUT_S = 1.0, 30.0
#: How long nothing but failures may come, from the beginning, before there is no hope, in seconds.
HOPELESS_S = 10.0
#: How often a file is looked at, in seconds: only its time and size, unless they have changed.
FILE_EVERY_S = 0.1
#: How soon a script is run again that names fewer than it did, in seconds.
_AGAIN_S = 0.1


def parse_hosts(text: str, default_slots: int) -> dict[str, int]:
    """Read the lines; empty ones and those that begin with ``#`` say nothing.

    Args:
        text: The lines.
        default_slots: The slots of a line that does not say them.

    Returns:
        Name -> slots, in the lines' order. A host of 0 slots is left out.

    Raises:
        ValueError: a line is of neither form; the message has it.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, slots = line.partition(":")
        if not name or not _NAME.fullmatch(name) or (colon and not slots.strip().isdecimal()):
            raise ValueError(f"{line!r} is neither 'host' nor 'host:slots'.")
        count = int(slots) if colon else default_slots
        if count:
            found[name] = count
    return found


class Answers:
    """Takes a place for gone when two answers in a row lack it: a file that is being written is short for a moment."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._absent: set[str] = set()

    @property
    def doubtful(self) -> bool:
        """Whether the last answer lacked a place for the first time; what else it said is not taken either."""
        return bool(self._absent)

    def take(self, found: Mapping[str, int]) -> dict[str, int]:
        """Return the places that there are after an answer."""
        absent = self._known.keys() - found.keys()
        gone, self._absent = absent & self._absent, absent - self._absent
        if self._absent:
            self._known = {name: slots for name, slots in self._known.items() if name not in gone}
        else:
            self._known = dict(found)
        return self._known

    def fail(self) -> None:
        """There was no answer, with which none follows the last one."""
        self._absent = set()


class Discovery:
    """Watches a script or a file; see :class:`estimators.backends.hosts.membership.MembershipSource`.

    Args:
        loop: The supervisor's loop.
        path: An executable file is a script; any other is read.
        default_slots: The slots of a line that does not say them.
        folder: The script's working directory.
        may_come_later: Whether the file need not be there yet; otherwise the job fails when nothing but failures has
            come for :data:`HOPELESS_S` since the beginning.
    """

    decides = True
    title = "discovery"

    def __init__(
        self, loop: Loop, path: Path, *, default_slots: int, folder: Path, may_come_later: bool = False
    ) -> None:
        self._loop = loop
        self._path = path
        self._default_slots = default_slots
        self._folder = folder
        self._may_come_later = may_come_later
        self._news: News | None = None
        self._answers = Answers()
        self._timed_out = False
        self._seen: tuple[int, int, int] | None = None
        self._pid: int | None = None

    def start(self, membership: MembershipListener) -> None:
        """Look for the first time, and then again and again."""
        self._news = News(membership, hopeless_after=None if self._may_come_later else HOPELESS_S)
        self._look()

    def close(self) -> None:
        """Watch no more."""
        self._news = None
        self._end_script()

    def _look(self) -> None:
        if self._news is None:
            return
        if os.access(self._path, os.X_OK) and self._path.is_file():
            self._run()
            return
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                self._take(self._path.read_bytes())
                self._seen = None if self._answers.doubtful else seen
        except FileNotFoundError:
            if self._news is not None and (self._news.has_answered or not self._may_come_later):
                self._complain(f"{self._path} does not exist")
        except OSError as error:
            self._complain(f"{self._path} cannot be read: {error.strerror}")
        self._loop.call_later(FILE_EVERY_S, self._look)

    def _run(self) -> None:
        """Run the script; its output is taken when it has ended well."""
        read_end, write_end = os.pipe()
        try:
            self._pid = processes.spawn([str(self._path)], env=dict(os.environ), cwd=self._folder, stdout=write_end)
        except OSError as error:
            os.close(read_end)
            self._complain(f"{self._path} cannot be run: {error.strerror}")
            self._loop.call_later(SCRIPT_EVERY_S, self._look)
            return
        finally:
            os.close(write_end)
        said = bytearray()

        def readable() -> None:
            data = os.read(read_end, 1 << 16)
            if data and len(said) < 1 << 20:
                said.extend(data)
            else:
                self._loop.remove_reader(read_end)

        def ended(status: int) -> None:
            late.cancel()
            self._pid = None
            self._loop.remove_reader(read_end)
            os.set_blocking(read_end, False)
            try:
                while data := os.read(read_end, 1 << 16):
                    said.extend(data)
            except BlockingIOError:
                pass  # it left a child behind that has the other end
            os.close(read_end)
            code, number = processes.decode_status(status)
            again = SCRIPT_EVERY_S
            if code == 0:
                self._take(bytes(said))
                again = _AGAIN_S if self._answers.doubtful else again
            elif self._timed_out:
                self._complain(f"{self._path} did not end within {SCRIPT_TIMEOUT_S:g} s")
            else:
                self._complain(
                    f"{self._path} ended with {f'exit code {code}' if number is None else f'signal {number}'}"
                )
            self._loop.call_later(again, self._look)

        def too_late() -> None:
            self._timed_out = True
            self._end_script()

        self._timed_out = False
        late = self._loop.call_later(SCRIPT_TIMEOUT_S, too_late)
        self._loop.add_reader(read_end, readable)
        self._loop.on_child(self._pid, ended)

    def _end_script(self) -> None:
        if self._pid is not None:
            try:
                os.kill(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def _take(self, said: bytes) -> None:
        try:
            found = parse_hosts(said.decode("utf-8-sig", "replace"), self._default_slots)
        except ValueError as error:
            self._complain(f"{self._path}: {error}")
            return
        if self._news is not None:
            self._news.places(self._answers.take(found))

    def _complain(self, text: str) -> None:
        self._answers.fail()
        if self._news is not None:
            self._news.problem(text)
