"""A program that talks to a cluster for a job's supervisor: JSON lines go in, and come out.

It is a process of its own, as a cluster's client brings a hundred modules and threads: the supervisor imports none of
it. Its input ends with the supervisor, however that went.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.system import processes
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts import shipping

#: How long what it complains of last is waited for when it has ended, in seconds, and how much is kept, in bytes.
_LAST_S, _KEPT = 0.1, 4096


class ProgramEnded(Exception):
    """The program has ended by itself. The message is the last line of what it has complained of, or empty."""


class ClusterClient:
    """The program, from its start.

    Args:
        loop: The supervisor's loop.
        path: Its text; it runs in this Python, isolated, in a session of its own.
        protected: Takes its pid while it runs.
        env: Its variables.
        logged: What stands before a message in a line of its log.
        for_hosts: Whether it starts hosts, and has to have what runs there.

    Attributes:
        code: The ``name`` of what runs on hosts, and the descriptor ``fd`` of its archive in the program.
        over: Whether it has ended, or is not listened to any more.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        path: Path,
        *,
        protected: set[int],
        env: Mapping[str, str],
        logged: re.Pattern[str],
        for_hosts: bool = True,
    ) -> None:
        self._loop = loop
        self._logged = logged
        self._events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()  # None at the end
        self._rest = self._complaint = b""
        self.over = False
        input_read, self._write = os.pipe()
        self._read, output_write = os.pipe()
        self._errors, errors_write = os.pipe()
        self.code: dict[str, Any] = {}
        archives = []
        if for_hosts:
            code = shipping.code()
            archive = os.memfd_create("code")  # longer than what a pipe takes at once
            os.write(archive, code.archive())
            os.lseek(archive, 0, os.SEEK_SET)
            self.code = {"name": code.name, "fd": archive}
            archives.append(archive)
        try:
            pid = processes.spawn(
                [sys.executable, "-I", str(path)],
                env=dict(env),
                cwd="/",
                stdin=input_read,
                stdout=output_write,
                stderr=errors_write,
                pass_fds=archives,
                death_signal=0,  # its input ends with us, and then it leaves the cluster in order
                new_session=True,
            )
        finally:
            for fd in (input_read, output_write, errors_write, *archives):
                os.close(fd)
        protected.add(pid)
        loop.on_child(pid, lambda status: protected.discard(pid))
        for fd, readable in ((self._read, self._readable), (self._errors, self._complained)):
            os.set_blocking(fd, False)
            loop.add_reader(fd, readable)

    def send(self, **message: Any) -> None:
        """Ask for something; nothing, when it has ended."""
        data = json.dumps(message).encode() + b"\n"
        try:
            while data and not self.over:  # it reads at once: there is no need to wait in the loop
                data = data[os.write(self._write, data) :]
        except OSError:
            pass  # its end is told by what it says

    async def event(self) -> dict[str, Any]:
        """Return the next thing that it says.

        Raises:
            ProgramEnded: it has ended.
        """
        event = await self._events.get()
        if event is None:
            await asyncio.sleep(_LAST_S)  # what it complains of last is perhaps why
            self.close()
            text = self._logged.sub("", self._complaint.decode("utf-8", "replace"))
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            raise ProgramEnded(lines[-1].rstrip(".") if lines else "")
        return event

    def close(self) -> None:
        """End its input, and listen no more: it leaves the cluster by itself, and nobody has to wait."""
        if not self.over:
            self.over = True
            for fd in (self._read, self._errors):
                self._loop.remove_reader(fd)
            for fd in (self._read, self._errors, self._write):
                os.close(fd)

    def _readable(self) -> None:
        try:
            data = os.read(self._read, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._read)
            self._events.put_nowait(None)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._events.put_nowait(json.loads(line))

    def _complained(self) -> None:
        try:
            data = os.read(self._errors, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._errors)
        self._complaint = (self._complaint + data)[-_KEPT:]
