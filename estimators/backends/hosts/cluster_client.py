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

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts import shipping
from estimators.backends.hosts.child import ChildProcess, in_memory

#: How long to wait for the last message to standard error of a program that has ended, in seconds.
_LAST_S = 0.1


class ProgramEnded(Exception):
    """The program has ended by itself. The message is the last line of its standard error, or empty."""


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
        self._logged = logged
        self.over = False
        self.code: dict[str, Any] = {}
        archives = []
        if for_hosts:
            code = shipping.code()
            archives.append(in_memory(code.archive()))
            self.code = {"name": code.name, "fd": archives[0]}
        try:
            words = [sys.executable, "-I", str(path)]
            self._program = ChildProcess(loop, words, env=env, cwd="/", pass_fds=archives, protected=protected)
        finally:
            for archive in archives:
                os.close(archive)

    def send(self, **message: Any) -> None:
        """Ask for something; nothing, when it has ended."""
        if not self.over:
            self._program.send(json.dumps(message).encode() + b"\n")

    async def event(self) -> dict[str, Any]:
        """Return the next thing that it says.

        Raises:
            ProgramEnded: it has ended.
        """
        try:
            event: dict[str, Any] = json.loads(await self._program.line())
        except EOFError:
            await asyncio.sleep(_LAST_S)  # its last message is perhaps why
            text = self._logged.sub("", self._program.errors.decode("utf-8", "replace"))
            self.close()
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            raise ProgramEnded(lines[-1].rstrip(".") if lines else "") from None
        return event

    def close(self) -> None:
        """End its input, and listen no more: it leaves the cluster by itself, and nobody has to wait."""
        if not self.over:
            self.over = True
            self._program.close()
