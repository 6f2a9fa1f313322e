"""Run Horovod's elastic driver as a child process of the supervisor, and exchange messages with it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import container
from container.contract.messages import Message
from container.contract.strategies import ElasticHorovod
from container.system import processes
from container.system.asyncio_loop import AsyncioLoop
from container.system.connection import Connection
from estimators.supervisor.elastic.policy import Limits

if TYPE_CHECKING:
    from estimators.supervisor.elastic.controller import ElasticController


class DriverProcess:
    """The process ``python -m container elastic``, which runs Horovod's driver. All methods return at once.

    Args:
        loop: The supervisor's event loop.
        controller: The controller, which receives the driver's messages and is informed if the driver ends
            unexpectedly.
        python: The interpreter that has Horovod.
        folder: The driver's working directory.
        strategy: The job's strategy.
        planned: The number of workers that the job was planned for.
        limits: The least and the largest number of workers in the cluster.
        address: The address at which workers reach the driver.
        interface: The workers' network interface.

    Raises:
        OSError: the driver could not be started.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        controller: ElasticController,
        *,
        python: str,
        folder: Path,
        strategy: ElasticHorovod,
        planned: int,
        limits: Limits,
        address: str,
        interface: str,
    ) -> None:
        self._loop = loop
        self._told_to_end = False
        self._log = bytearray()
        package = Path(next(iter(container.__path__))).resolve()
        argv = [python, str(package / "__main__.py"), "elastic", "--address", address, "--interface", interface]
        # The driver receives no workers before the first workers are ready. Until then, their number may be lowered.
        # Therefore --initial is the least number.
        argv += ["--initial", str(limits.least), "--least", str(limits.least), "--most", str(limits.most)]
        argv += ["--planned", str(planned)]
        argv += ["--timeout", f"{strategy.elastic_timeout:g}"]
        if strategy.warm:
            argv.append("--warm")
        if strategy.reset_limit is not None:
            argv += ["--reset-limit", str(strategy.reset_limit)]
        ours, theirs = socket.socketpair()
        self._errors, errors_write = os.pipe()
        try:
            self.pid = processes.spawn(
                argv,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                cwd=folder,
                stdin=theirs.fileno(),
                stdout=errors_write,
                stderr=errors_write,
            )
        except OSError:
            ours.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
            os.close(errors_write)
        # The driver ends when the connection closes. The supervisor ignores the end of the connection, because it
        # watches the process itself.
        self._connection = Connection(loop, ours, controller.from_driver, lambda reason: None)
        loop.add_reader(self._errors, self._logged)

        def exited(status: int) -> None:
            self._logged()
            if not self._told_to_end:
                controller.driver_lost(self._log.decode("utf-8", "replace")[-4000:])

        loop.on_child(self.pid, exited)

    def send(self, message: Message) -> None:
        """Send a message to the driver. If the driver has ended, the message is ignored."""
        self._connection.send(message)

    def close(self) -> None:
        """Close the connection, so that the driver exits."""
        self._told_to_end = True
        self._connection.close()

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
