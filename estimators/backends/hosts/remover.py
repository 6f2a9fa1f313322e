"""Remove the resources of a job when its supervisor has ended in any way.

    python remover.py MODULE VALUE ARGUMENTS

The input is a pipe whose other end only the supervisor has. When the input ends, the function ``remove`` of MODULE is
called with ARGUMENTS, a JSON object. VALUE identifies the removed resources in process lists.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from container.system.asyncio_loop import AsyncioLoop
    from estimators.backends.hosts.child import ChildProcess

_HERE = Path(__file__).resolve()
#: The shortest time between the starts of a process and of the process's replacement, in seconds. A process that cannot
#: run, for example for lack of memory, would otherwise be started again and again.
_START_S = 1.0


class Remover:
    """The process that removes a job's resources. A process that is killed is replaced.

    Args:
        loop: The supervisor's loop.
        protected: Pids of the supervisor's children that are not killed at its end.
        module: The name of the module whose ``remove`` is called.
        value: The text that identifies the resources in process lists.
        arguments: The arguments of ``remove``.

    Attributes:
        process: The process.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self, loop: AsyncioLoop, protected: set[int], module: str, value: str, arguments: Mapping[str, Any]
    ) -> None:
        self._loop, self._protected = loop, protected
        self._argv = [sys.executable, str(_HERE), module, value, json.dumps(arguments)]
        self.process = self._start()
        self._replacing = loop.start(self._replace())

    def _start(self) -> ChildProcess:
        from estimators.backends.hosts.child import ChildProcess  # the program itself does not need it

        return ChildProcess(self._loop, self._argv, cwd="/", protected=self._protected, logs_errors=True)

    async def _replace(self) -> None:
        """Start another process whenever the process was killed, for example for lack of memory."""
        import asyncio

        while True:
            started = self._loop.time()
            await self.process.wait()
            await asyncio.sleep(pause(self._loop.time() - started))
            self._restart()

    def _restart(self) -> None:
        self.process.close()
        with contextlib.suppress(OSError):  # tried again after a pause
            self.process = self._start()

    def finish(self) -> None:
        """Make the process remove everything now. If the process was killed, start another one for that."""
        self._replacing.cancel()
        if self.process.ended.done():
            self._restart()
        self.process.close()


def pause(ran: float) -> float:
    """Return how long to wait before a process is replaced, in seconds.

    Args:
        ran: How long the process has run, in seconds.
    """
    return max(_START_S - ran, 0.0)


def main() -> int:
    """Wait until the input ends, then remove everything.

    Returns:
        0 if nothing is left, otherwise 1.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the job's signals must not end this process
    module, _, arguments = sys.argv[1:]
    while os.read(0, 4096):
        pass
    # Imports this same package, nothing from this file's folder. Imported late: a starting job needs the cores.
    sys.path[:] = [str(_HERE.parents[3]), *(place for place in sys.path if place != str(_HERE.parent))]
    removed = importlib.import_module(module).remove(**json.loads(arguments))
    return 0 if removed else 1


if __name__ == "__main__":
    sys.exit(main())
