"""Remove what a job has made elsewhere when its supervisor is over, however that came about.

    python remover.py MODULE VALUE ARGUMENTS

The input is a pipe whose other end only the supervisor has. When the input ends, ``remove`` of MODULE is called with
ARGUMENTS, a JSON object. VALUE says in a list of processes what is removed.
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


class Remover:
    """Hold the process that removes what one job makes. Another one replaces a process that is killed.

    Args:
        loop: The supervisor's loop.
        protected: The supervisor's children that are left alone at its end.
        module: The name of the module that removes.
        value: What is removed, for a list of processes.
        arguments: What the module's ``remove`` is told.

    Attributes:
        process: The process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self, loop: AsyncioLoop, protected: set[int], module: str, value: str, arguments: Mapping[str, Any]
    ) -> None:
        self._loop, self._protected = loop, protected
        self._argv = [sys.executable, str(_HERE), module, value, json.dumps(arguments)]
        self.process = self._start()
        self._replacing = loop.start(self._replace())

    def _start(self) -> ChildProcess:
        from estimators.backends.hosts.child import ChildProcess  # the program does without

        return ChildProcess(self._loop, self._argv, cwd="/", protected=self._protected, logs_errors=True)

    async def _replace(self) -> None:
        """Start another process when one was killed, for lack of memory perhaps."""
        with contextlib.suppress(OSError):
            while True:
                await self.process.wait()
                self.process.close()
                self.process = self._start()

    def finish(self) -> None:
        """Have everything removed now."""
        self._replacing.cancel()
        self.process.close()


def main() -> int:
    """Wait for the end of the input, then remove everything.

    Returns:
        0 when nothing is left, else 1.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what is said to the job is not said to us
    module, _, arguments = sys.argv[1:]
    while os.read(0, 4096):
        pass
    # This very package, and nothing of this file's folder. Only now: a job that starts wants the cores for itself.
    sys.path[:] = [str(_HERE.parents[3]), *(place for place in sys.path if place != str(_HERE.parent))]
    removed = importlib.import_module(module).remove(**json.loads(arguments))
    return 0 if removed else 1


if __name__ == "__main__":
    sys.exit(main())
