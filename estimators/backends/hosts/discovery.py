"""Run a script or read a file repeatedly to learn which machines exist for an elastic job's hosts.

The script's output, or the file, has one machine per line, in Horovod's format: ``name`` or ``name:slots``. If the
user's discovery is a Python function, the caller's process writes the function's results to such a file.
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

#: A name without blanks, control characters, and the replacement characters of bytes that are not UTF-8.
_NAME = re.compile(r"[^\s\x00-\x20\x7f\ufffd]+")
#: Seconds between two runs of a script, and after which a run is killed.
SCRIPT_EVERY_S, SCRIPT_TIMEOUT_S = 1.0, 30.0
#: Seconds after which the job fails if no attempt to list the machines has succeeded.
HOPELESS_S = 10.0
#: Seconds between two checks whether a file has changed. A script that lists fewer machines than before is run again
#: after the same time.
SOON_S = 0.1


def parse_hosts(text: str, default_slots: int) -> dict[str, int]:
    """Parse lines that list machines. Empty lines and lines that begin with ``#`` are ignored.

    Args:
        text: The lines.
        default_slots: The number of slots for a line without a number.

    Returns:
        The number of slots of each machine, by name, in the order of the lines. A machine with 0 slots is left out.

    Raises:
        ValueError: a line has neither the format ``name`` nor ``name:slots``. The message contains the line.
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


class DiscoveryFilter:
    """A filter that drops a machine only if two lists in a row do not contain the machine.

    A single list may be incomplete, because a file may be read while it is being written.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._absent: set[str] = set()

    @property
    def doubtful(self) -> bool:
        """Return whether the last list lacks a machine that the list before still contained.

        New machines in such a list are ignored.
        """
        return bool(self._absent)

    def take(self, found: Mapping[str, int]) -> dict[str, int]:
        """Process a new list, and return the machines that count as existing from now on.

        Args:
            found: The number of slots of each machine in the new list, by the machine's name.
        """
        absent = self._known.keys() - found.keys()
        gone, self._absent = absent & self._absent, absent - self._absent
        if self._absent:
            self._known = {name: slots for name, slots in self._known.items() if name not in gone}
        else:
            self._known = dict(found)
        return self._known

    def fail(self) -> None:
        """Record that the script or file gave no list. The lists before and after this failure are not two lists in a
        row.
        """
        self._absent = set()


class _NoAnswer(Exception):
    """Raised if the script or the file gives no usable list. The message has the reason."""


class PlaceDiscovery(Watching):
    """A membership source that runs a script or reads a file.

    See :class:`estimators.backends.hosts.membership.MembershipSource` for the interface.

    Args:
        loop: The supervisor's event loop.
        path: The path of the script or file. An executable file is run as a script, and any other file is read.
        default_slots: The number of slots for a line without a number.
        folder: The script's working directory.
        may_come_later: Whether the file may be created later. If False, the job fails if no list could be read in the
            first :data:`HOPELESS_S` seconds.
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
        """Run the script or read the file repeatedly, and report changes of the machines."""
        news = News(membership, hopeless_after=None if self._may_come_later else HOPELESS_S)
        answers = DiscoveryFilter()
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
        """Return the content of the file if the file has changed since the last call. Otherwise, return None.

        Return None also if the file does not exist yet and may be created later.

        Args:
            required: Whether the file must exist, because an earlier call has read it.

        Raises:
            _NoAnswer: the file cannot be read, or does not exist although it must exist.
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
        """Run the script, and return its output.

        Raises:
            _NoAnswer: the script cannot be run, does not end in time, or fails.
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
            with contextlib.suppress(BlockingIOError):  # a child process of the script may hold the other end open
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
        """Append the script's new output to ``said``.

        Stop reading after 1 MiB. A script that prints endlessly then blocks until its time limit.
        """
        data = os.read(output, 1 << 16)
        said += data
        if not data or len(said) >= 1 << 20:
            self._loop.remove_reader(output)
