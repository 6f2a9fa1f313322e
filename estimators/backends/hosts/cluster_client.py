"""Run a program that communicates with a cluster for a job's supervisor, and exchange JSON lines with the program.

The program is a separate process, because the client library of Ray or Spark loads a hundred modules and starts
threads, which the supervisor should not have. When the supervisor ends, even if it was killed, the program's standard
input ends, and the program disconnects from the cluster.
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

#: Seconds to wait for the last standard error output of a program that has ended.
_LAST_S = 0.1


class ProgramEnded(Exception):
    """Raised if the program has ended unexpectedly.

    The message is the last line of the program's standard error, or empty.
    """


class ClusterClient:
    """A running program that communicates with a cluster.

    Args:
        loop: The supervisor's event loop.
        path: The path of the program's source file. The program runs with this process's interpreter, isolated
            (``-I``), in a session of its own.
        protected: The pids of the processes that the supervisor does not kill. The set contains the program's pid while
            the program runs.
        env: The environment variables of the program.
        logged: The pattern of the prefix of the program's log messages. The prefix is removed from messages for the
            user.
        for_hosts: Whether the program starts hosts. If True, the program gets the archive of the code that runs on
            hosts.

    Attributes:
        code: The ``name`` of the code that runs on hosts, and the file descriptor ``fd`` of the code's archive in the
            program.
        over: Whether the program has ended or this client was closed.
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
        """Send a request to the program. Do nothing if the program has ended."""
        if not self.over:
            self._program.send(json.dumps(message).encode() + b"\n")

    async def event(self) -> dict[str, Any]:
        """Wait for the program's next event, and return it.

        Raises:
            ProgramEnded: the program has ended.
        """
        try:
            event: dict[str, Any] = json.loads(await self._program.line())
        except EOFError:
            await asyncio.sleep(_LAST_S)  # until its last error message has arrived
            text = self._logged.sub("", self._program.errors.decode("utf-8", "replace"))
            self.close()
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            raise ProgramEnded(lines[-1].rstrip(".") if lines else "") from None
        return event

    def close(self) -> None:
        """Close the program's standard input and stop reading, without waiting. The program then disconnects from the
        cluster.
        """
        if not self.over:
            self.over = True
            self._program.close()
