"""Remove a job's containers or cloud machines when the job's supervisor has ended, even if it was killed.

    python remover.py MODULE VALUE ARGUMENTS

Standard input is a pipe whose other end only the supervisor has. When standard input ends, this program calls the
function ``remove`` of MODULE with ARGUMENTS, a JSON object. VALUE serves only to identify the resources in process
lists.
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
#: Minimum number of seconds between the start of a process and the start of its replacement. Without a pause, a process
#: that cannot run, for example for lack of memory, would be started again and again.
_START_S = 1.0


class Remover:
    """The supervisor's handle of the process that removes a job's resources. If the process is killed, it is replaced.

    Args:
        loop: The supervisor's event loop.
        protected: The pids of the processes that the supervisor does not kill. The process is added to them.
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
        """Start a new process whenever the last one has ended, for example because it was killed for lack of memory.

        :meth:`finish` cancels this task.
        """
        import asyncio

        while True:
            started = self._loop.time()
            await self.process.wait()
            await asyncio.sleep(pause(self._loop.time() - started))
            self._restart()

    def _restart(self) -> None:
        self.process.close()
        with contextlib.suppress(OSError):  # ``_replace`` tries again after a pause
            self.process = self._start()

    def finish(self) -> None:
        """Make the process remove all resources now. If the process was killed, start a new one that removes them."""
        self._replacing.cancel()
        if self.process.ended.done():
            self._restart()
        self.process.close()


def pause(ran: float) -> float:
    """Return the number of seconds to wait before a process is replaced.

    Args:
        ran: The number of seconds that the process has run.
    """
    return max(_START_S - ran, 0.0)


def main() -> int:
    """Wait until standard input ends, then remove all resources of the job.

    Returns:
        The exit code: 0 if everything was removed, otherwise 1.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the job's signals must not end this process
    module, _, arguments = sys.argv[1:]
    while os.read(0, 4096):
        pass
    # Import the package that this file belongs to, and not modules from the file's own folder. Import it only now,
    # because a starting job needs the cores.
    sys.path[:] = [str(_HERE.parents[3]), *(place for place in sys.path if place != str(_HERE.parent))]
    removed = importlib.import_module(module).remove(**json.loads(arguments))
    return 0 if removed else 1


if __name__ == "__main__":
    sys.exit(main())
