"""Horovod's elastic driver as a child of the supervisor: what is said to it, and what it says."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import container
from container.contract import elastic as messages
from container.contract.strategies import ElasticHorovod
from container.system import processes
from container.system.loop import Loop
from estimators.supervisor.elastic.policy import Limits


class Driver:
    """A running ``python -m container elastic``. All methods return at once.

    Args:
        loop: The supervisor's loop.
        python: The interpreter that has Horovod.
        folder: Its working directory.
        strategy: The job's strategy.
        planned: The workers that the job was planned for.
        limits: The sizes that it keeps to.
        address: Where workers reach it.
        interface: The workers' network interface.
        received: Called with each message of its.
        ended: Called with the end of what it logged, when it ended though nobody had told it to.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        python: str,
        folder: Path,
        strategy: ElasticHorovod,
        planned: int,
        limits: Limits,
        address: str,
        interface: str,
        received: Callable[[messages.Message], None],
        ended: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._received = received
        self._told_to_end = False
        self._buffer = bytearray()
        self._log = bytearray()
        package = Path(next(iter(container.__path__))).resolve()
        argv = [python, str(package / "__main__.py"), "elastic", "--address", address, "--interface", interface]
        # It is told of nobody before the first ones are there, whose number whoever asks hosts to leave may lower.
        argv += ["--initial", str(limits.least), "--least", str(limits.least), "--most", str(limits.most)]
        argv += ["--planned", str(planned)]
        argv += ["--timeout", f"{strategy.elastic_timeout:g}"]
        if strategy.warm:
            argv.append("--warm")
        if strategy.reset_limit is not None:
            argv += ["--reset-limit", str(strategy.reset_limit)]
        input_read, self._input = os.pipe()
        self._output, output_write = os.pipe()
        self._errors, errors_write = os.pipe()
        try:
            self.pid = processes.spawn(
                argv,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                cwd=folder,
                stdin=input_read,
                stdout=output_write,
                stderr=errors_write,
            )
        except OSError:
            for fd in (self._input, self._output, self._errors):
                os.close(fd)
            raise
        finally:
            for fd in (input_read, output_write, errors_write):
                os.close(fd)
        loop.add_reader(self._output, self._readable)
        loop.add_reader(self._errors, self._logged)

        def exited(status: int) -> None:
            self._logged()
            if not self._told_to_end:
                ended(self._log.decode("utf-8", "replace")[-4000:])

        loop.on_child(self.pid, exited)

    def say(self, operation: str, **values: Any) -> None:
        """Tell it something; one that is gone is noticed by its end."""
        if self._told_to_end:
            return  # and the descriptor may be somebody else's
        with contextlib.suppress(OSError):
            os.write(self._input, messages.encode(operation, **values))

    def close(self) -> None:
        """Let it end."""
        if not self._told_to_end:
            self._told_to_end = True
            os.close(self._input)

    def _readable(self) -> None:
        data = os.read(self._output, 1 << 16)
        if not data:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            return
        self._buffer += data
        for message in messages.take(self._buffer):
            if not self._told_to_end:
                self._received(message)

    def _logged(self) -> None:
        if self._errors < 0:
            return
        data = os.read(self._errors, 1 << 16)
        if data:
            self._log += data
            del self._log[:-16000]
            sys.stderr.write(data.decode("utf-8", "replace"))  # the supervisor's own log
        else:
            self._loop.remove_reader(self._errors)
            os.close(self._errors)
            self._errors = -1
