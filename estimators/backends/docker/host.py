"""Run a host as a container.

The host's files are in the job's record. The host's agents, which are helper processes, run on this machine outside the
container.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from container.contract import variables
from container.contract.failures import Cause
from container.contract.frozen import dataclass
from container.system.connection import BlockingConnection
from container.system.running import ProcessEnd, Runner
from estimators.backends.docker import containers
from estimators.backends.docker.engine import FRAME, ContainerEnd
from estimators.backends.docker.exit_status import end_failure
from estimators.backends.hosts.here import LocalHost
from estimators.backends.hosts.platform import problem
from estimators.backends.hosts.provider import HostProcess, Output
from estimators.job.errors import FleetfitError

if TYPE_CHECKING:
    from estimators.backends.docker.provider import DockerProvider

_READ_SIZE = 1 << 18
#: Seconds to wait for a container's last output after its end.
_LAST_WORDS = 2.0
#: Number of bytes at the end of a container's output that are searched for the cause of a failure.
_TAIL = 1 << 16
#: Signal -> the message that is written to our toolkit's lifeline instead. A signal would be lost if the container's
#: first process has no handler for the signal yet; a message stays in the pipe.
_WORDS: Mapping[int, bytes] = {signal.SIGTERM: variables.SAY_STOP, signal.SIGINT: variables.SAY_END}


@dataclass(frozen=True)
class RunningContainer:
    """A new or kept container in which a training process runs.

    Attributes:
        container: The container's id.
        stream: The connection to the output and standard input of the training process.
        answer: The connection on which a kept container reports the end of the training, or None for a new container.
    """

    container: str
    stream: socket.socket
    answer: BlockingConnection | None = None

    def close(self) -> None:
        """Close the connections."""
        self.stream.close()
        if self.answer is not None:
            self.answer.close()


class ContainerHost(LocalHost):
    """A host that is a container.

    See :class:`estimators.backends.hosts.provider.Host` for the interface.

    Args:
        runner: The object that runs the agents of all hosts.
        provider: The provider, which has the client of the container engine.
        name: The host's name in the job and in the job's network.
    """

    interface = containers.INTERFACE

    def __init__(self, runner: Runner, provider: DockerProvider, name: str) -> None:
        super().__init__(runner, provider.backend, name)
        self.address = name
        self._provider = provider
        self._process: ContainerProcess | None = None

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Output,
        *,
        lifeline: str | None = None,
        **more: Any,
    ) -> HostProcess:
        """Start the container with the training process. Without ``lifeline``, start an agent instead.

        An agent is a helper process that runs on this machine outside the container.
        """
        if lifeline is None:
            return super().run(argv, env, on_output, **more)
        self._process = ContainerProcess(self._provider, self.name, env, on_output)
        return self._process

    async def listen(self) -> int:
        """Return the port at which the container's toolkit listens."""
        return variables.CONTROL_PORT

    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """Send SIGKILL to the container."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the connection to the container, and cancel the container's start if it is in progress.

        The closed connection makes our toolkit in the container terminate. The end of the container is no longer
        reported. The container is removed after :meth:`DockerProvider.close`.
        """
        if self._process is not None:
            self._process.close()


class ContainerProcess:
    """A host's container, with the interface of a process.

    See :class:`estimators.backends.hosts.provider.HostProcess` for the interface.

    Args:
        provider: The provider, which has the client of the container engine.
        host: The name of the host.
        env: The environment variables of the host's toolkit.
        on_output: A function that is called with the container's output.
    """

    def __init__(self, provider: DockerProvider, host: str, env: Mapping[str, str], on_output: Output) -> None:
        self._provider = provider
        self._host = host
        self._on_output = on_output
        self._tail = b""
        self._running: RunningContainer | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._unsaid = b""  # data that was written before the container ran
        self._signals: list[int] = []
        self._starting = asyncio.ensure_future(provider.start(host, env))
        self._life = provider.loop.start(self._live())

    async def wait(self) -> ProcessEnd:
        """Wait until the container has ended and its output was passed on. Return how the container has ended."""
        return await asyncio.shield(self._life)

    async def _live(self) -> ProcessEnd:
        """Wait for the container's start, pass on its output, and return how it ended."""
        provider, starting = self._provider, self._starting
        await asyncio.wait((starting,))
        if starting.cancelled():
            return ProcessEnd(exit_code=255)
        try:
            running = starting.result()
        except (FleetfitError, OSError) as error:
            return ProcessEnd(exit_code=255, failure=problem(str(error), Cause.LAUNCH))
        ended = await self._follow(running)
        self._running = None
        provider.ended(self._host, clean=not ended.was_killed)
        said = "" if provider.toolkit else provider.said(self._host)
        return ProcessEnd(
            exit_code=ended.exit_code,
            signal=signal.SIGKILL if ended.exit_code == 128 + signal.SIGKILL else None,
            failure=end_failure(self._host, ended, self._tail, toolkit=provider.toolkit, said=said),
        )

    async def _follow(self, running: RunningContainer) -> ContainerEnd:
        """Pass on the container's output until the container has ended, and return how it has ended."""
        reader, self._writer = await asyncio.open_connection(sock=running.stream)
        self._running = running
        self.write(b"")
        for number in self._signals:
            self.signal(number)
        reading = self._provider.loop.start(self._read(reader, framed=running.answer is None))
        ending = asyncio.ensure_future(self._provider.wait(running))
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done() and self._provider.succeeded(self._host):
                # The engine reports the end a tenth of a second later, after removing the container's network.
                return ContainerEnd(exit_code=0)
            ended = await ending
            await asyncio.wait((reading,), timeout=_LAST_WORDS)
        except (FleetfitError, OSError) as error:
            ended = ContainerEnd(
                exit_code=255, error=f"the connection to the engine was lost while the job ran: {error}"
            )
        finally:
            reading.cancel()
            ending.cancel()
            self._writer.close()
        return ended

    async def _read(self, reader: asyncio.StreamReader, *, framed: bool) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not reader.at_eof():
                size = FRAME.unpack(await reader.readexactly(FRAME.size))[1] if framed else 0
                output = await reader.readexactly(size) if framed else await reader.read(_READ_SIZE)
                self._tail = (self._tail + output)[-_TAIL:]
                self._on_output(output)

    def write(self, data: bytes) -> None:
        """Write data to the lifeline, the standard input of our toolkit. Any other program does not get the data.

        Before the container runs, the data is stored.
        """
        self._unsaid += data
        if self._writer is not None and self._provider.toolkit:
            self._writer.write(self._unsaid)
            self._unsaid = b""

    def close_input(self) -> None:
        """Do nothing. The container's standard input ends when the connection to the container is closed."""

    def signal(self, number: int) -> None:
        """Send a signal to the container. Before the container runs, store the signal. If it is not SIGTERM, also
        cancel the start.

        For SIGTERM and SIGINT, our toolkit gets a message on its lifeline. All other signals, and all signals to other
        programs, are sent by the container engine. The engine sends SIGTERM unchanged, and sends SIGKILL instead of any
        other signal.
        """
        if self._running is None:
            self._signals.append(number)
            if number != signal.SIGTERM:  # the job does not wait for the engine's response
                self._starting.cancel()
        elif self._provider.toolkit and number in _WORDS:
            self.write(_WORDS[number])
        else:
            self._provider.kill(self._running, "SIGTERM" if number == signal.SIGTERM else "SIGKILL")

    def close(self) -> None:
        """Cancel the container's start if it is in progress, close the connection to the container, and stop waiting
        for its end.
        """
        self._starting.cancel()
        self._life.cancel()
