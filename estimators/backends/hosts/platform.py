"""Provide inputs to a job's hosts, and save the hosts' files, as SageMaker's platform does.

This work is done by agents: processes ``python -m container agent`` on the hosts' machine. Agents download the inputs,
feed Pipe mode channels, and serve FastFile mode. They also synchronise checkpoints and intermediate output with S3.

:mod:`.apart` serves hosts that share no files with the caller's machine. :mod:`.here` serves hosts whose files are on
this machine.
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
from container.contract.failures import Cause, Failure
from container.contract.layout import MLTree, rebased
from container.system.asyncio_loop import gather
from estimators.backends import config, local
from estimators.backends.base import Backend
from estimators.backends.events import AttemptFailed
from estimators.backends.hosts.agents import Agent, Sync, agent_command
from estimators.backends.hosts.provider import Host, HostLost, HostProcess, Output
from estimators.job.request import TrainingJobSpec

#: Prefixes of the caller's environment variables that a host's agents need to reach S3.
_AWS = ("AWS_", "S3_ENDPOINT_URL")
#: Seconds between two checks whether a host has written intermediate output.
_LOOK_S = 1.0


class PreparationFailed(Exception):
    """Raised if a host cannot be prepared. The job then fails.

    Args:
        failure: The failure. A string is the message of a failure of the job's settings or environment.
    """

    def __init__(self, failure: Failure | str) -> None:
        self.failure = problem(failure) if isinstance(failure, str) else failure
        super().__init__(self.failure.message)


class Platform(abc.ABC):
    """An object that starts and ends the agents for one or more hosts of a job. All these hosts are on one machine.

    If a coroutine of this class needs a lost host, it raises :class:`~estimators.backends.hosts.provider.HostLost`.

    Args:
        backend: The job's backend.
    """

    #: Whether the hosts are on this machine and use this machine's files.
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
        """Return the spec of the job. The hosts in the spec may differ from attempt to attempt."""
        return self.backend.spec

    @property
    def first(self) -> Host:
        """Return the first host. All agents run on its machine, and write to its log unless they serve another host."""
        return next(iter(self.hosts.values()))

    def tree(self, host: Host) -> MLTree:
        """Return a host's file tree, with paths on the host."""
        return MLTree(Path(host.facts.root) / "ml")

    @abc.abstractmethod
    def facts(self, host: Host) -> config.BackendFacts:
        """Return the values in a host's configuration that depend on the backend."""

    def environment(self, host: Host) -> dict[str, str]:
        """Return the environment variables of a host's toolkit, with paths on the host."""
        tree = self.tree(host)
        given = config.host_config(self.spec, host.name, self.facts(host)).environment
        return {**rebased(given, tree), variables.BASE_DIR: str(tree.base)}

    @abc.abstractmethod
    async def prepare(self, hosts: Sequence[Host], *, number: int = 0, count: int = 0, joins: bool = False) -> None:
        """Prepare hosts for the start of their toolkits: provide code, configuration and inputs.

        A toolkit is the fleetfit process on a host that starts the script.

        Args:
            hosts: The hosts. For a platform that serves only one host, the sequence has one item.
            number: The number of the first of these hosts among all hosts of the attempt.
            count: The number of hosts of the attempt.
            joins: Whether the hosts join a running job. Nothing is mounted for such hosts.

        Raises:
            PreparationFailed: a host cannot be prepared. The error contains the failure of the job.
        """

    @property
    def _sync_folder(self) -> str:
        """Return the path of the folder of checkpoints on the hosts' machine."""
        return str(self.tree(self.first).checkpoints)

    # --- before training ---

    def fail(self, failure: Failure) -> None:
        """Report a failure to the supervisor, unless the job is being terminated."""
        if not self.backend.is_ending:
            self.backend.events.put_nowait(AttemptFailed(failure))

    async def restore(self) -> None:
        """Download the checkpoints from S3 to the hosts' machine."""
        await self._do(["sync", "down", *self._sync_words()])

    async def bring_channels(
        self, hosts: Sequence[Host], channels: str, place: Sequence[str], *, joins: bool, first: int = 0
    ) -> None:
        """Provide input channels to hosts, and return when scripts can read the channels.

        Each channel is downloaded, mounted or fed through FIFOs, according to its input mode.

        Args:
            hosts: The hosts.
            channels: The path of the file on the hosts' machine that lists the channels.
            place: The arguments of ``agent prepare`` that give the hosts' position among all hosts.
            joins: Whether the hosts join a running job.
            first: The number of the first of these hosts among all hosts of the attempt.

        Raises:
            PreparationFailed: a channel cannot be provided.
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
        """Return the folder on the hosts' machine in which S3 buckets are mounted."""
        return Path(self.first.facts.root) / "mounts"

    async def _start_mount(self, words: list[str]) -> None:
        # Because of ``tidies``, the agent unmounts the buckets even if the supervisor is killed.
        mount = self._mount = self.agent(["mount", *words, "--mounts", str(self.mounts)], tidies=True)
        await self._serve(mount, self.first, [str(self.mounts / "ready")], lasts=True)

    async def _serve(self, agent: Agent, host: Host, paths: Sequence[str], *, lasts: bool = False) -> None:
        """Wait until an agent has created certain files, which means that the agent is ready.

        If the agent fails later while a host is running, the job fails.

        Args:
            agent: The agent.
            host: The host on which the agent creates the files.
            paths: The paths of the files.
            lasts: Whether any end of the agent is a failure, even with exit code 0.

        Raises:
            PreparationFailed: the agent has ended before it was ready.
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
        """Wait until an agent has ended, and return its failure. If a host is running, also report the failure as the
        job's failure.

        Args:
            agent: The agent.
            lasts: Whether any end of the agent is a failure, even with exit code 0.
        """
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
        """Unmount the S3 buckets. Call this method only after the last script has stopped reading them."""
        if self._mount is not None:
            agent, self._mount = self._mount, None
            agent.process.close_input()

    def fifos(self, host: Host) -> list[Path]:
        """Return the paths of the FIFOs of a host's channels for the first epoch."""
        readers, data = self.spec.ranks_per_host, self.tree(host).data
        return [
            pipes.fifo(pipes.folder(data, local_rank, readers), channel, 0)
            for local_rank in range(readers)
            for channel in local.piped(self.spec)
        ]

    async def _feed(self, number: int, host: Host, hosts: int, file: list[str]) -> None:
        """Start the feeder, the agent that writes a host's channels into FIFOs. Wait until scripts can open the first
        FIFOs.
        """
        if not local.piped(self.spec):
            return
        self.make_fifos(host)
        words = ["--base-dir", str(self.tree(host).base), *file, "--host", host.name, "--number", str(number)]
        words += ["--hosts", str(hosts), "--ranks", str(self.spec.ranks_per_host)]
        # Because of ``tidies``, the agent removes its FIFOs even if the supervisor is killed.
        feeder = self._feeders[host.name] = self.agent(["pipe", *words], host=host, tidies=True, own=True)
        await self._serve(feeder, host, [str(path) for path in self.fifos(host)])

    def make_fifos(self, host: Host) -> None:
        """Create the first FIFOs of a host before the host's feeder starts. By default, do nothing: this process can
        create FIFOs only for hosts on this machine.
        """

    # --- during training ---

    def _sync_words(self) -> list[str]:
        words = ["--dir", self._sync_folder, "--host", self.first.name]
        uri = local.synced_checkpoints(self.spec)
        return [*words, "--uri", uri] if uri is not None else words

    def start_syncs(self) -> None:
        """Start the agents that copy checkpoints and intermediate output, unless these agents are already running."""
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
        """Start an agent that copies checkpoints from the hosts to the caller's folder, and return the agent's Sync.

        Return None if the hosts themselves write to the caller's folder.
        """
        return None

    def sync(self, agent: Agent, end: Coroutine[Any, Any, Failure | None]) -> Sync:
        """Return a :class:`Sync` for an agent. If the agent fails before :meth:`Sync.finish` is called, the job fails.

        Args:
            agent: The agent.
            end: A coroutine that waits until the agent has ended and returns the agent's failure.
        """

        async def over() -> Failure | None:
            try:
                failure = await end
            except HostLost:  # a lost host sends nothing more
                return None
            if failure is not None and not sync.finishes and self.backend.running:
                self.fail(failure)
            return failure

        sync = Sync(agent, self.backend.loop.start(over()))
        return sync

    async def _look_again(self) -> None:
        """Check repeatedly whether a host has written intermediate output. If so, start an agent that copies the
        output.

        Most hosts write no intermediate output. For these hosts, no agent is started.
        """
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
            if failure is not None:  # as with SageMaker's toolkit, this does not fail the job
                self.backend.warn(failure.message, host.name)

        self._syncs[f"intermediate of {host.name}"] = self.sync(agent, end())

    # --- after training ---

    def end_feeders(self) -> None:
        """Terminate all feeders. Call this method only after the last script has stopped reading channels.

        If the number of hosts is fixed, a feeder continues when its host has ended. When the host has failed, the
        feeder may still report bad input data as the reason.
        """
        for host in list(self._feeders):
            self.end_feeder(host)

    def host_ended(self, host: str) -> None:
        """Handle the end of a host while other hosts are running.

        If the number of hosts may change, terminate the feeder of the host.
        """
        if launchers.of(self.spec.strategy).membership_changes:
            self.end_feeder(host)

    def end_feeder(self, host: str) -> None:
        """Terminate a host's feeder. Call this method only after the host's scripts have stopped reading channels."""
        if (agent := self._feeders.pop(host, None)) is not None:
            agent.process.signal(signal.SIGTERM)

    @property
    def syncing(self) -> list[HostProcess]:
        """Return the processes that copy saved files.

        When the job is terminated, these processes continue until all files are copied.
        """
        return [sync.agent.process for sync in self._syncs.values()]

    def end_agents(self) -> None:
        """Kill all agents except those that copy saved files."""
        syncing = self.syncing
        for agent in self._agents:
            if agent.process not in syncing:
                agent.process.signal(signal.SIGKILL)

    async def bring_saved(self) -> Failure | None:
        """Copy the remaining saved files. Call this method only when no process writes saved files.

        Returns:
            The failure if some files could not be copied. None if all files were copied.
        """
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await self._look()
        failures = await gather(*(sync.finish() for sync in self._syncs.values()))
        return next((failure for failure in failures if failure is not None), None)

    async def end_attempt(self, host: str | None = None) -> None:
        """Copy all saved files of an attempt before the next attempt begins.

        Call this method only when no process writes saved files.

        Args:
            host: The host whose log gets the warning if files could not be copied. The default is the job's first host.
        """
        failure = await self.bring_saved()
        if failure is not None:  # the next attempt's agent tries again, and fails the job if it cannot
            self.backend.warn(failure.message, host)
        self._syncs = {}  # files saved from now on belong to the next attempt

    @abc.abstractmethod
    async def collect(self) -> Failure | None:
        """Copy all saved files, models and outputs of the hosts. Call this method only after the hosts have ended.

        Returns:
            The failure if some files could not be copied. None if all files were copied.
        """

    def close(self) -> None:
        """Stop checking for intermediate output."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    # --- agents ---

    async def _do(self, words: Sequence[str], *, host: Host | None = None) -> None:
        """Run an agent, and wait until it has ended.

        Raises:
            PreparationFailed: the agent has failed.
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
        """Start an agent on the hosts' machine.

        Args:
            words: The agent's command-line arguments.
            host: The host whose log the agent writes to. The default is the first host.
            tidies: Whether the agent gets SIGTERM when the connection to the host ends, as for :meth:`Host.run`.
            own: Whether the agent serves only ``host``, so that a failure of the agent is a failure of this host.
            on_output: A function that receives the agent's standard output. If None, the output is written to the log.
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


def problem(message: str, cause: Cause = Cause.CONFIGURATION) -> Failure:
    """Return a failure that the job's settings or environment have caused, and not one of the job's processes."""
    return Failure(cause=cause, message=message)
