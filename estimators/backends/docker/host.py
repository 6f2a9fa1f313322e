"""A host that is a container: its files are in the job's record, and its agents run beside it on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from container.contract import variables
from container.contract.failures import Cause
from container.contract.layout import success_text
from container.system.running import ProcessEnd, Runner
from estimators.backends.docker import containers
from estimators.backends.docker.engine import Ended, Running
from estimators.backends.docker.engine_errors import EngineError
from estimators.backends.docker.exit_status import end_failure
from estimators.backends.hosts.here import LocalHost
from estimators.backends.hosts.platform import problem
from estimators.backends.hosts.provider import HostProcess
from estimators.job.errors import FleetfitError

if TYPE_CHECKING:
    from estimators.backends.docker.provider import DockerProvider

_READ_SIZE = 1 << 18
#: How long what a container printed may take to arrive after its end, in seconds.
_LAST_WORDS = 2.0
#: How much of the end of what a container printed is looked through for the reason, in bytes.
_TAIL = 1 << 16
#: What is said to our toolkit instead of a signal: one to a first process that has no handler for it yet would be lost;
#: a word waits.
_WORDS = {signal.SIGTERM: variables.SAY_STOP, signal.SIGINT: variables.SAY_END}


class ContainerHost(LocalHost):
    """See :class:`estimators.backends.hosts.provider.Host`.

    Args:
        runner: Runs the agents of all hosts.
        provider: What has the engine.
        name: The host's name in the job, and in its network.
    """

    interface = containers.INTERFACE

    def __init__(self, runner: Runner, provider: DockerProvider, name: str) -> None:
        super().__init__(runner, provider.cluster, name)
        self.address = name
        self._provider = provider
        self._process: ContainerProcess | None = None

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Callable[[bytes], None],
        *,
        lifeline: str | None = None,
        **more: Any,
    ) -> HostProcess:
        """Run an agent beside the container; the training process, which alone has a lifeline, is the container."""
        if lifeline is None:
            return super().run(argv, env, on_output, **more)
        self._process = ContainerProcess(self._provider, self.name, env, on_output)
        return self._process

    async def listen(self) -> int:
        """Return the port at which a container's toolkit listens by itself."""
        return variables.CONTROL_PORT

    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """Send SIGKILL to the container."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)

    def close(self) -> None:
        """Let it go: the provider has the container removed."""
        if self._process is not None:
            self._process.close()


class ContainerProcess:
    """A host's container as a process; see :class:`estimators.backends.hosts.provider.HostProcess`.

    Args:
        provider: What has the engine.
        host: The host.
        env: What its toolkit is told.
        on_output: Takes what it prints.
    """

    def __init__(
        self, provider: DockerProvider, host: str, env: Mapping[str, str], on_output: Callable[[bytes], None]
    ) -> None:
        self._provider = provider
        self._host = host
        self._on_output = on_output
        self._tail = b""
        self._running: Running | None = None
        self._unsaid = b""  # what it is told before it runs
        self._signals: list[int] = []
        self._told_to_end = asyncio.Event()  # before it ran
        self._life = provider.loop.start(self._live(env))

    async def wait(self) -> ProcessEnd:
        """Return how it has ended, after all that it printed was given."""
        return await asyncio.shield(self._life)

    async def _live(self, env: Mapping[str, str]) -> ProcessEnd:
        """Start the container, take what it prints, and wait for its end."""
        provider = self._provider
        try:
            await self._until_ready()
            start = provider.starter(self._host, env, wanted=lambda: not self._told_to_end.is_set())
            running = await provider.call(start)
        except (FleetfitError, OSError) as error:
            provider.ended(self._host, spoilt=True)
            return ProcessEnd(exit_code=255, failure=problem(str(error), Cause.LAUNCH))
        with running.stream:
            ended = await self._follow(running)
        self._running = None
        provider.ended(self._host, spoilt=ended.was_killed)
        said = "" if provider.toolkit else self._said()
        return ProcessEnd(
            exit_code=ended.exit_code,
            signal=signal.SIGKILL if ended.exit_code == 128 + signal.SIGKILL else None,
            failure=end_failure(self._host, ended, self._tail, toolkit=provider.toolkit, said=said),
        )

    async def _until_ready(self) -> None:
        """Wait until there is what the container starts in, or until it is told to end.

        Raises:
            FleetfitError: it cannot be had, or is not needed any more.
            OSError: a folder cannot be made.
        """
        ready, told = asyncio.ensure_future(self._provider.ready()), asyncio.ensure_future(self._told_to_end.wait())
        try:
            await asyncio.wait((ready, told), return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                raise EngineError("the job has ended in the meantime")
            ready.result()
        finally:
            ready.cancel()
            told.cancel()
            await asyncio.wait((ready, told))

    async def _follow(self, running: Running) -> Ended:
        """Take what it prints until it has ended."""
        running.stream.setblocking(False)
        self._running = running
        self.write(b"")
        for number in self._signals:
            self.signal(number)
        reading = asyncio.ensure_future(self._read(running))
        ending = asyncio.ensure_future(self._ended(running))
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()  # a fault in what takes the output
            if not ending.done() and self._succeeded():
                # The engine says so a tenth of a second later, when it has taken down the container's network.
                return Ended(exit_code=0)
            ended = await ending
            await asyncio.wait((reading,), timeout=_LAST_WORDS)
            return ended
        finally:
            reading.cancel()
            ending.cancel()
            await asyncio.wait((reading, ending))  # before the connection is closed

    async def _read(self, running: Running) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(running.stream, _READ_SIZE):
                if output := running.decode(data):
                    self._tail = (self._tail + output)[-_TAIL:]
                    self._on_output(output)

    async def _ended(self, running: Running) -> Ended:
        try:
            return await self._provider.wait(running)
        except (FleetfitError, OSError, ValueError) as error:  # half an answer is none
            text = f"the connection to the engine was lost while the job ran: {error}"
            return Ended(exit_code=255, error=text)

    def _succeeded(self) -> bool:
        """Return whether our toolkit has said that all went well: the last that it does before it ends."""
        cluster = self._provider.cluster
        if not self._provider.toolkit or cluster.is_ending:
            return False
        try:
            text = cluster.record.tree(self._host).success_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False
        return text == success_text(cluster.attempt)

    def _said(self) -> str:
        """Return what a program of others left in ``/opt/ml/output/failure``, SageMaker's place for the reason."""
        try:
            file = self._provider.cluster.record.tree(self._host).failure_file
            return file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def write(self, data: bytes) -> None:
        """Say something to our toolkit; a program of others does not listen."""
        self._unsaid += data
        if self._running is not None and self._provider.toolkit:
            with contextlib.suppress(OSError):
                self._running.stream.send(self._unsaid)
            self._unsaid = b""

    def close_input(self) -> None:
        """Do nothing: a container's input ends with its connection."""

    def signal(self, number: int) -> None:
        """Tell our toolkit what a signal would, or have the engine send it; a program of others is ended by SIGKILL."""
        if self._running is None:
            self._signals.append(number)
            if number != signal.SIGTERM:
                self._told_to_end.set()
        elif self._provider.toolkit and number in _WORDS:
            self.write(_WORDS[signal.Signals(number)])
        else:
            name = "SIGTERM" if number == signal.SIGTERM else "SIGKILL"
            self._provider.kill(self._running, name)

    def close(self) -> None:
        """Wait for nothing more of it."""
        self._life.cancel()
