"""What SageMaker's platform does for a job's hosts, done by ``python -m container agent`` where the hosts are.

The agents bring the inputs, feed Pipe mode, serve FastFile mode, and keep checkpoints and intermediate output in step
with S3. How files come to a host differs: :mod:`.apart` has the hosts that share nothing with the caller, :mod:`.here`
those whose files are this machine's.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar

from container import launchers
from container.contract import pipes, variables
from container.contract.failures import Cause, Failure, describe_end
from container.contract.layout import MLTree, rebased
from container.system.asyncio_loop import gather
from estimators.backends import config, local
from estimators.backends.base import Backend
from estimators.backends.events import AttemptFailed
from estimators.backends.hosts.provider import Host, HostLost, HostProcess, Output
from estimators.job.request import TrainingJobSpec

#: The caller's variables that a host's agents need to reach S3.
_AWS = ("AWS_", "S3_ENDPOINT_URL")
#: How often it is looked whether a host has begun to write intermediate output, in seconds.
_LOOK_S = 1.0


class PreparationFailed(Exception):
    """A host cannot be prepared, and so the job cannot go on.

    Args:
        failure: Why; a text is a failure of the job's settings or surroundings.
    """

    def __init__(self, failure: Failure | str) -> None:
        self.failure = problem(failure) if isinstance(failure, str) else failure
        super().__init__(self.failure.message)


class Platform(abc.ABC):
    """Serves the hosts of a job that share one machine.

    Its coroutines raise :class:`~estimators.backends.hosts.provider.HostLost` when a host that they need is lost.

    Args:
        backend: The job's backend.
    """

    #: Whether that is this machine, with its files.
    shared: ClassVar[bool] = False

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.record = backend.record
        self.hosts: dict[str, Host] = {}
        self._agents: list[Agent] = []
        self._feeders: dict[str, Agent] = {}
        self._mount: Agent | None = None
        self._syncs: dict[str, Sync] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def spec(self) -> TrainingJobSpec:
        """The job; an attempt may have fewer hosts than the one before."""
        return self.backend.spec

    @property
    def first(self) -> Host:
        """The host on whose machine, and into whose log, the agents of all of them run."""
        return next(iter(self.hosts.values()))

    def tree(self, host: Host) -> MLTree:
        """A host's file tree, where it is on the host."""
        return MLTree(Path(host.facts.root) / "ml")

    @abc.abstractmethod
    def facts(self, host: Host) -> config.BackendFacts:
        """What a host's configuration depends on."""

    def environment(self, host: Host) -> dict[str, str]:
        """Return the variables that a host's configuration gives its toolkit, with the paths that it has there."""
        tree = self.tree(host)
        given = config.host_config(self.spec, host.name, self.facts(host)).environment
        return {**rebased(given, tree), variables.BASE_DIR: str(tree.base)}

    @abc.abstractmethod
    async def prepare(self, hosts: Sequence[Host], *, number: int = 0, count: int = 0, joins: bool = False) -> None:
        """Bring everything that the hosts' toolkits need.

        Args:
            hosts: The hosts; one only, where the platform serves one.
            number: The number of the first of them among all hosts of the attempt.
            count: How many hosts the attempt has.
            joins: Whether they come to a job that runs; nothing is mounted for such hosts.

        Raises:
            PreparationFailed: with the failure of the job.
        """

    @property
    def _sync_folder(self) -> str:
        """The folder of the checkpoints on the machine."""
        return str(self.tree(self.first).checkpoints)

    # --- before the hosts ---

    def fail(self, failure: Failure) -> None:
        """Something that a host needs has failed."""
        if not self.backend.is_ending:
            self.backend.events.put_nowait(AttemptFailed(failure))

    async def restore(self) -> None:
        """Bring the checkpoints from S3."""
        await self._do(["sync", "down", *self._sync_words()])

    async def bring_channels(
        self, hosts: Sequence[Host], channels: str, place: Sequence[str], *, joins: bool, first: int = 0
    ) -> None:
        """Bring what a file of channels on the machine names, mount what is mounted, feed what is fed.

        Returns when scripts can read.

        Args:
            hosts: The hosts to bring it to.
            channels: The file.
            place: What ``agent prepare`` has to know of where these are among others.
            joins: Whether they come to a job that runs.
            first: The number of the first of them.
        """
        file = ["--channels", channels, *(["--everybody"] if self.backend.other_users else [])]
        bases = [word for host in hosts for word in ("--base-dir", str(self.tree(host).base))]
        count = len(hosts) if not place else int(place[-1])
        await self._do(["prepare", *bases, *file, *place], host=hosts[0])
        if local.mounted(self.spec) and not joins and self._mount is None:
            await self._start_mount([*bases, *file])
        await gather(*(self._feed(number, host, count, file) for number, host in enumerate(hosts, first)))

    @property
    def mounts(self) -> Path:
        """Where the machine mounts buckets."""
        return Path(self.first.facts.root) / "mounts"

    async def _start_mount(self, words: list[str]) -> None:
        # Should the supervisor be killed, it still unmounts.
        mount = self._mount = self.agent(["mount", *words, "--mounts", str(self.mounts)], tidies=True)
        await self._serve(mount, self.first, [str(self.mounts / "ready")], lasts=True)

    async def _serve(self, agent: Agent, host: Host, paths: Sequence[str], *, lasts: bool = False) -> None:
        """Wait until an agent serves; from then on its failure is the job's, as long as a host runs.

        Args:
            agent: The agent.
            host: The host on which files appear when it serves.
            paths: The files.
            lasts: Whether its end is a failure, however it ends.
        """
        ended = self.backend.loop.start(self._end_of(agent, lasts=lasts))
        there = asyncio.ensure_future(host.await_files(paths))
        try:
            await asyncio.wait((ended, there), return_when=asyncio.FIRST_COMPLETED)
            if not there.done() and (failure := ended.result()) is not None:
                raise PreparationFailed(failure)
            await there
        finally:
            there.cancel()

    async def _end_of(self, agent: Agent, *, lasts: bool) -> Failure | None:
        """Return the failure of an agent that has ended; while a host runs, it is the job's."""
        try:
            failure = await agent.end()
        except HostLost:
            return None
        if lasts and agent is self._mount:
            failure = failure or problem("the agent of the FastFile channels ended early.")
        if failure is not None and self.backend.running:
            self.fail(failure)
        return failure

    def end_mount(self) -> None:
        """End the mounts: nobody reads them any more."""
        if self._mount is not None:
            agent, self._mount = self._mount, None
            agent.process.close_input()

    def fifos(self, host: Host, number: int = 0) -> list[Path]:
        """The FIFOs of an epoch of a host's channels."""
        readers, data = local.readers_per_host(self.spec), self.tree(host).data
        return [
            pipes.fifo(pipes.folder(data, local_rank, readers), channel, number)
            for local_rank in range(readers)
            for channel in local.piped(self.spec)
        ]

    async def _feed(self, number: int, host: Host, hosts: int, file: list[str]) -> None:
        """Start the agent that feeds a host's channels; the first FIFOs are there then, as a script may open them."""
        if not local.has_pipes(self.spec):
            return
        self.make_fifos(host)
        words = ["--base-dir", str(self.tree(host).base), *file, "--host", host.name, "--number", str(number)]
        words += ["--hosts", str(hosts), "--ranks", str(local.readers_per_host(self.spec))]
        # Should the supervisor be killed, it still removes its FIFOs.
        feeder = self._feeders[host.name] = self.agent(["pipe", *words], host=host, tidies=True, own=True)
        await self._serve(feeder, host, [str(path) for path in self.fifos(host)])

    def make_fifos(self, host: Host) -> None:  # noqa: B027 - the feeder does
        """Make the first FIFOs, where that is quicker from here."""

    # --- beside them ---

    def _sync_words(self) -> list[str]:
        words = ["--dir", self._sync_folder, "--host", self.first.name]
        uri = local.synced_checkpoints(self.spec)
        return [*words, "--uri", uri] if uri is not None else words

    def start_syncs(self) -> None:
        """Start what brings checkpoints and intermediate output from the machine."""
        sync = self._syncs.get("checkpoints")
        if sync is None or sync.over.done():
            if local.synced_checkpoints(self.spec) is not None:
                agent = self.agent(["sync", "up", *self._sync_words()])
                self._syncs["checkpoints"] = self.sync(agent, agent.end())
            elif (sync := self.bring_checkpoints()) is not None:
                self._syncs["checkpoints"] = sync
        if self._looking is None and local.synced_intermediate(self.spec) is not None:
            self._looking = self.backend.loop.start(self._look_again())

    def bring_checkpoints(self) -> Sync | None:
        """Bring checkpoints to the caller's folder, where that is another one."""
        return None

    def sync(self, agent: Agent, end: Coroutine[Any, Any, Failure | None]) -> Sync:
        """Return an agent as a :class:`Sync`; its failure before it was told to finish is the job's.

        Args:
            agent: The agent.
            end: Waits for its end, and returns its failure.
        """

        async def over() -> Failure | None:
            try:
                failure = await end
            except HostLost:  # nothing more comes from there
                return None
            if failure is not None and not sync.finishes and self.backend.running:
                self.fail(failure)
            return failure

        sync = Sync(agent, self.backend.loop.start(over()))
        return sync

    async def _look_again(self) -> None:
        """Look for intermediate output again and again: most hosts write none, and get no agent for it."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()

    async def _look(self) -> None:
        await gather(*(self._look_on(host) for host in self.hosts.values()))

    async def _look_on(self, host: Host) -> None:
        with contextlib.suppress(HostLost):
            files = await host.list_files(str(self.tree(host).output_intermediate))
            if files and f"intermediate of {host.name}" not in self._syncs:
                self._start_intermediate(host)

    def _start_intermediate(self, host: Host) -> None:
        uri = local.synced_intermediate(self.spec) or ""
        words = ["--dir", str(self.tree(host).output_intermediate), "--uri", uri, "--host", host.name]
        agent = self.agent(["sync", "up", *words, "--what", "intermediate output"], host=host)

        async def end() -> None:
            failure = await agent.end()
            if failure is not None:  # as with SageMaker's toolkit, the job is not lost for that
                self.backend.warn(failure.message, host.name)

        self._syncs[f"intermediate of {host.name}"] = self.sync(agent, end())

    # --- after them ---

    def end_feeders(self) -> None:
        """End all feeders: nobody reads any more.

        Where hosts do not come and go, feeders stay until all hosts have ended: what one says of its data may be the
        reason why a host failed.
        """
        for host in list(self._feeders):
            self.end_feeder(host)

    def host_ended(self, host: str) -> None:
        """Note that a host has ended, while others run: of hosts that come and go, its feeder ends."""
        if launchers.of(self.spec.strategy).membership_changes:
            self.end_feeder(host)

    def end_feeder(self, host: str) -> None:
        """End a host's feeder: nobody reads there any more."""
        if (agent := self._feeders.pop(host, None)) is not None:
            agent.process.signal(signal.SIGTERM)

    @property
    def syncing(self) -> list[HostProcess]:
        """What brings what was saved: it outlives an end without grace, until everything is brought."""
        return [sync.agent.process for sync in self._syncs.values()]

    def end_agents(self) -> None:
        """End all but what brings what was saved."""
        syncing = self.syncing
        for agent in self._agents:
            if agent.process not in syncing:
                agent.process.signal(signal.SIGKILL)

    async def bring_saved(self) -> Failure | None:
        """Have the rest of what was saved brought; nothing is written there any more.

        Returns:
            Why not all of it could be brought.
        """
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await self._look()
        failures = await gather(*(sync.finish() for sync in self._syncs.values()))
        return next((failure for failure in failures if failure is not None), None)

    async def end_attempt(self, host: str | None = None) -> None:
        """Have all that was saved brought, before another attempt begins with it; nothing is written there any more."""
        failure = await self.bring_saved()
        if failure is not None:  # the next attempt's tries again, and fails the job if it cannot
            self.backend.warn(failure.message, host)
        self._syncs = {}  # what is saved from now on is another attempt's

    @abc.abstractmethod
    async def collect(self) -> Failure | None:
        """Bring what the hosts have saved; nothing runs there any more.

        Returns:
            Why not all of it could be brought.
        """

    def close(self) -> None:
        """Look no more for intermediate output."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    # --- agents ---

    async def _do(self, words: Sequence[str], *, host: Host | None = None) -> None:
        """Run an agent to its end.

        Raises:
            PreparationFailed: it has failed.
        """
        if (failure := await self.agent(words, host=host).end()) is not None:
            raise PreparationFailed(failure)

    def agent(
        self,
        words: Sequence[str],
        *,
        host: Host | None = None,
        tidies: bool = False,
        own: bool = False,
        on_output: Output | None = None,
    ) -> Agent:
        """Run the agent on the machine.

        Args:
            words: Its words.
            host: The host into whose log it writes; default: the first.
            tidies: As for :meth:`Host.run`.
            own: Whether it is for that host alone.
            on_output: Takes what it writes, where that is not for the log.
        """
        host = host or self.first
        name = host.name
        said = bytearray()

        def say(data: bytes) -> None:
            said.extend(data)
            self.backend.hand_on(name, data)

        process = host.run(
            agent_command(host, words),
            {variable: value for variable, value in os.environ.items() if variable.startswith(_AWS)},
            on_output or say,
            tidies=tidies,
            on_errors=say if on_output is not None else None,
        )
        agent = Agent(process, said, host=name if own or not self.shared else None)
        self._agents.append(agent)
        return agent


class Agent:
    """A process of ours that serves hosts beside their training.

    Args:
        process: The process.
        said: What it has said, up to now.
        host: The host that its failure is attributed to.
    """

    def __init__(self, process: HostProcess, said: bytearray, *, host: str | None) -> None:
        self.process = process
        self._said = said
        self._host = host

    async def end(self) -> Failure | None:
        """Wait for its end, and return its failure, with its last line as the reason."""
        end = await self.process.wait()
        if end.exit_code == 0:
            return None
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        # One that was killed had not come to say why: what it said last was something else.
        told = lines[-1] if lines and end.signal is None else ""
        text = end.error or told or f"the host agent {describe_end(end.exit_code, end.signal)}."
        process = "agent" if self._host is not None else None
        return Failure(cause=Cause.CONFIGURATION, message=text, host=self._host, process=process)


class Sync:
    """An agent that brings files of a host somewhere until its input ends.

    Attributes:
        agent: The agent.
        over: Ends with it; its result is why not all could be brought.
        finishes: Whether it was told to bring the rest.
    """

    def __init__(self, agent: Agent, over: asyncio.Task[Failure | None]) -> None:
        self.agent = agent
        self.over = over
        self.finishes = False

    async def finish(self) -> Failure | None:
        """Have the rest brought, and return why not all could be."""
        if not self.finishes and not self.over.done():
            self.agent.process.close_input()
        self.finishes = True
        return await asyncio.shield(self.over)


def agent_command(host: Host, words: Sequence[str]) -> list[str]:
    """Return the argv of an agent on a host."""
    return [host.facts.python, "-I", f"{host.facts.package}/__main__.py", "agent", *words]


def problem(message: str, cause: Cause = Cause.CONFIGURATION) -> Failure:
    """A failure of the job's settings or surroundings, not of its processes."""
    return Failure(cause=cause, message=message)
