"""Places that a script or a file names, in lines of Horovod's form: ``name`` or ``name:slots``.

So does the caller's function: its answers are put into a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

from container.system import processes
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts.membership import MembershipListener, News, Watching

#: No blanks, control characters, or bytes that were no UTF-8.
_NAME = re.compile(r"[^\s\x00-\x20\x7f\ufffd]+")
#: How often a script is run, and how long it may take, in seconds.
SCRIPT_EVERY_S, SCRIPT_TIMEOUT_S = 1.0, 30.0
#: How long nothing but failures may come, from the beginning, before there is no hope, in seconds.
HOPELESS_S = 10.0
#: How often a file is looked at (only its time and size, unless they have changed), and how soon a script is run again
#: that names fewer than it did, in seconds.
SOON_S = 0.1


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


class _NoAnswer(Exception):
    """The script or the file says nothing that can be used; the message says why."""


class PlaceDiscovery(Watching):
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
        self, loop: AsyncioLoop, path: Path, *, default_slots: int, folder: Path, may_come_later: bool = False
    ) -> None:
        super().__init__(loop)
        self._path = path
        self._default_slots = default_slots
        self._folder = folder
        self._may_come_later = may_come_later
        self._seen: tuple[int, int, int] | None = None

    async def watch(self, membership: MembershipListener) -> None:
        """Look again and again, and tell what is new."""
        news = News(membership, hopeless_after=None if self._may_come_later else HOPELESS_S)
        answers = Answers()
        while True:
            is_script = os.access(self._path, os.X_OK) and self._path.is_file()
            try:
                said = await self._run() if is_script else self._read(required=news.has_answered)
                if said is not None:
                    news.places(answers.take(self._parse(said)))
            except _NoAnswer as error:
                answers.fail()
                news.problem(str(error))
            if answers.doubtful:
                self._seen = None
            await asyncio.sleep(SCRIPT_EVERY_S if is_script and not answers.doubtful else SOON_S)

    def _parse(self, said: bytes) -> dict[str, int]:
        try:
            return parse_hosts(said.decode("utf-8-sig", "replace"), self._default_slots)
        except ValueError as error:
            raise _NoAnswer(f"{self._path}: {error}") from None

    def _read(self, *, required: bool) -> bytes | None:
        """Return what the file has, if it is another one than it was.

        Raises:
            _NoAnswer: it cannot be read, or is not there although it is required, or may not come later.
        """
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            said = self._path.read_bytes() if seen != self._seen else None
        except FileNotFoundError:
            if self._may_come_later and not required:
                return None
            raise _NoAnswer(f"{self._path} does not exist") from None
        except OSError as error:
            raise _NoAnswer(f"{self._path} cannot be read: {error.strerror}") from None
        self._seen = seen
        return said

    async def _run(self) -> bytes:
        """Run the script, and return what it prints.

        Raises:
            _NoAnswer: it cannot be run, does not end in time, or fails.
        """
        output, script_output = os.pipe()
        try:
            pid = processes.spawn([str(self._path)], env=dict(os.environ), cwd=self._folder, stdout=script_output)
        except OSError as error:
            os.close(output)
            raise _NoAnswer(f"{self._path} cannot be run: {error.strerror}") from None
        finally:
            os.close(script_output)
        said, ended = bytearray(), self._loop.create_future()
        self._loop.on_child(pid, ended.set_result)
        self._loop.add_reader(output, functools.partial(self._hear, output, said))
        try:
            await asyncio.wait([ended], timeout=SCRIPT_TIMEOUT_S)
            if not ended.done():
                raise _NoAnswer(f"{self._path} did not end within {SCRIPT_TIMEOUT_S:g} s")
            os.set_blocking(output, False)
            with contextlib.suppress(BlockingIOError):  # it may have left a child behind that has the other end
                said += os.read(output, 1 << 20)  # all that is in the pipe
        finally:
            self._loop.remove_reader(output)
            os.close(output)
            if not ended.done():
                os.kill(pid, signal.SIGKILL)
        code, number = processes.decode_status(ended.result())
        if code != 0:
            how = f"exit code {code}" if number is None else f"signal {number}"
            raise _NoAnswer(f"{self._path} ended with {how}")
        return bytes(said)

    def _hear(self, output: int, said: bytearray) -> None:
        """Keep what the script prints now; one that prints on and on is not read any more, and waits."""
        data = os.read(output, 1 << 16)
        said += data
        if not data or len(said) >= 1 << 20:
            self._loop.remove_reader(output)
