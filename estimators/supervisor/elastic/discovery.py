"""Who else there is, as somebody outside says: a script in Horovod's form, a file of such lines, or the caller.

Lines are ``name`` or ``name:slots``, as Horovod's ``--host-discovery-script`` prints them. On a backend of one machine
a name stands for one of its own hosts: when it comes a host is started, when it goes that host leaves.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from container.system import processes
from container.system.loop import Loop

#: How often a script is run, and how long it may take, in seconds.
SCRIPT_EVERY_S, SCRIPT_TIMEOUT_S = 1.0, 30.0
#: How long nothing but failures may come, from the beginning, before there is no hope, in seconds.
HOPELESS_S = 10.0
#: How often a file is looked at, in seconds: only its time and size, unless they have changed.
FILE_EVERY_S = 0.1

Found = Mapping[str, int]


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
        if not name or " " in name or (colon and not slots.strip().isdecimal()):
            raise ValueError(f"{line!r} is neither 'host' nor 'host:slots'.")
        count = int(slots) if colon else default_slots
        if count:
            found[name] = count
    return found


class Discovery:
    """Watches a script or a file, and tells when what it says has changed.

    Args:
        loop: The supervisor's loop.
        path: An executable file is a script; any other is read.
        default_slots: The slots of a line that does not say them.
        folder: The script's working directory.
        changed: Called with name -> slots, at first and after every change.
        problem: Called with what is wrong, once until it is another thing; what was known stays.
        hopeless: Called with what is wrong when nothing else has come for :data:`HOPELESS_S` since the beginning; None
            where a file may come later.
    """

    def __init__(
        self,
        loop: Loop,
        path: Path,
        *,
        default_slots: int,
        folder: Path,
        changed: Callable[[Found], None],
        problem: Callable[[str], None],
        hopeless: Callable[[str], None] | None = None,
    ) -> None:
        self._loop = loop
        self._path = path
        self._default_slots = default_slots
        self._folder = folder
        self._changed = changed
        self._problem = problem
        self._hopeless = hopeless
        self._began = time.monotonic()
        self._timed_out = False
        self._known: dict[str, int] | None = None
        self._said = ""
        self._seen: tuple[int, int, int] | None = None
        self._closed = False
        self._pid: int | None = None
        self._look()

    def close(self) -> None:
        """Watch no more."""
        self._closed = True
        self._end_script()

    def _look(self) -> None:
        if self._closed:
            return
        if os.access(self._path, os.X_OK) and self._path.is_file():
            self._run()
            return
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                self._take(self._path.read_text(encoding="utf-8"))
                self._seen = seen
        except FileNotFoundError:
            if self._known is not None or self._hopeless is not None:
                self._complain(f"{self._path} is not there")
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
            if code == 0:
                self._take(said.decode("utf-8", "replace"))
            elif self._timed_out:
                self._complain(f"{self._path} did not end within {SCRIPT_TIMEOUT_S:g} s")
            else:
                self._complain(
                    f"{self._path} ended with {f'exit code {code}' if number is None else f'signal {number}'}"
                )
            if not self._closed:
                self._loop.call_later(SCRIPT_EVERY_S, self._look)

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

    def _take(self, text: str) -> None:
        try:
            found = parse_hosts(text, self._default_slots)
        except ValueError as error:
            self._complain(f"{self._path}: {error}")
            return
        self._said = ""
        if found != self._known and not self._closed:
            self._known = found
            self._changed(found)

    def _complain(self, text: str) -> None:
        if self._closed:
            return
        if text != self._said:
            self._said = text
            self._problem(text)
        if self._hopeless is not None and self._known is None and time.monotonic() - self._began >= HOPELESS_S:
            self._hopeless(text)
