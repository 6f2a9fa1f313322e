"""What SageMaker's platform does for a job's hosts, done by ``python -m container agent`` where the hosts are.

The agents bring the inputs, feed Pipe mode, serve FastFile mode, and keep checkpoints and intermediate output in step
with S3. How files come to a host differs: :mod:`.apart` has the hosts that share nothing with the caller, :mod:`.here`
those whose files are this machine's.
"""

from __future__ import annotations

import abc
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from container import launchers
from container.contract import pipes
from container.contract.failures import Cause, Failure, describe_end
from container.contract.layout import MLTree
from container.contract.wire import Event
from container.system.loop import Timer
from container.system.running import ProcessEnd
from estimators.backends import config, local
from estimators.backends.base import Backend
from estimators.backends.hosts.provider import Host, HostProcess
from estimators.job.request import TrainingJobSpec

Then = Callable[[], None]
_T = TypeVar("_T")
Done = Callable[[Failure | None], None]

#: The caller's variables that a host's agents need to reach S3.
_AWS = ("AWS_", "S3_ENDPOINT_URL")
#: How often it is looked whether a host has begun to write intermediate output, in seconds.
_LOOK_S = 1.0


class Platform(abc.ABC):
    """Serves the hosts of a job that share one machine. All methods return at once; the loop does the rest.

    Args:
        backend: Whose job it is.
    """

    #: Whether that is this machine, with its files.
    shared: ClassVar[bool] = False

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.record = backend.record
        self.hosts: dict[str, Host] = {}
        self._agents: list[HostProcess] = []
        self._feeders: dict[str, HostProcess] = {}
        self._mount: HostProcess | None = None
        self._syncs: dict[str, Sync] = {}
        self._look_timer: Timer | None = None
        self.is_lost = False

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

    @abc.abstractmethod
    def prepare(self, host: Host, number: int, hosts: int, then: Then, *, joins: bool = False) -> None:
        """Bring everything that the host's toolkit needs; failures are told to the supervisor.

        Args:
            host: The host.
            number: Which of how many it is.
            hosts: How many are prepared for this attempt.
            then: Called when it is all there.
            joins: Whether it comes to a job that runs; nothing is mounted for one.
        """

    @property
    def _sync_folder(self) -> str:
        """The folder of the checkpoints on the machine."""
        return str(self.tree(self.first).checkpoints)

    # --- before the hosts ---

    def fail(self, failure: Failure) -> None:
        """Something that a host needs has failed."""
        if not self.backend.is_ending:
            self.backend.callbacks.failed(failure)

    def going_on(self, then: Then) -> Done:
        """Go on, unless it failed or what ends was told to."""

        def done(failure: Failure | None) -> None:
            if failure is not None:
                self.fail(failure)
            elif not self.backend.is_ending:
                then()

        return done

    def restore(self, then: Then) -> None:
        """Bring the checkpoints from S3."""
        self.agent(["sync", "down", *self._sync_words()], self.going_on(then))

    def bring_channels(
        self, hosts: Sequence[Host], channels: str, place: Sequence[str], then: Then, *, joins: bool, first: int = 0
    ) -> None:
        """Bring what a file of channels on the machine names, mount what is mounted, feed what is fed.

        Args:
            hosts: Those to bring it to.
            channels: The file.
            place: What ``agent prepare`` has to know of where these are among others.
            then: Called when scripts can read.
            joins: Whether they come to a job that runs.
            first: The number of the first of them.
        """
        file = ["--channels", channels, *(["--everybody"] if self.backend.other_users else [])]
        bases = [word for host in hosts for word in ("--base-dir", str(self.tree(host).base))]
        count = len(hosts) if not place else int(place[-1])

        def feed() -> None:
            each(list(enumerate(hosts, first)), lambda one, next_: self._feed(*one, count, file, next_), then)

        def prepared() -> None:
            if local.mounted(self.spec) and not joins and self._mount is None:
                self._start_mount([*bases, *file], feed)
            else:
                feed()

        self.agent(["prepare", *bases, *file, *place], self.going_on(prepared), host=hosts[0])

    @property
    def mounts(self) -> Path:
        """Where the machine mounts buckets."""
        return Path(self.first.facts.root) / "mounts"

    def _start_mount(self, words: list[str], then: Then) -> None:
        waiting = True

        def ended(failure: Failure | None) -> None:
            if self._mount is process and (waiting or self.backend.running):
                self.fail(failure or problem("the agent of the FastFile channels ended early."))

        def there(error: str | None) -> None:
            nonlocal waiting
            waiting = False
            if not self.backend.is_ending:
                then()

        # Should the supervisor be killed, it still unmounts.
        process = self._mount = self.agent(["mount", *words, "--mounts", str(self.mounts)], ended, tidies=True)
        self.first.await_files([str(self.mounts / "ready")], there)

    def end_mount(self) -> None:
        """Nobody reads what is mounted any more."""
        if self._mount is not None:
            process, self._mount = self._mount, None
            process.close_input()

    def fifos(self, host: Host, number: int = 0) -> list[Path]:
        """The FIFOs of an epoch of a host's channels."""
        readers, data = local.readers_per_host(self.spec), self.tree(host).data
        return [
            pipes.fifo(pipes.folder(data, local_rank, readers), channel, number)
            for local_rank in range(readers)
            for channel in local.piped(self.spec)
        ]

    def _feed(self, number: int, host: Host, hosts: int, file: list[str], then: Then) -> None:
        """Start what feeds a host's channels; go on when the first FIFOs are there: a script may open them at once."""
        if not local.has_pipes(self.spec):
            then()
            return
        waiting = True

        def ended(failure: Failure | None) -> None:
            # After a SIGTERM of ours there is none.
            if failure is not None and (waiting or self.backend.running):
                self.fail(failure)

        def there(error: str | None) -> None:
            nonlocal waiting
            waiting = False
            if not self.backend.is_ending:
                then()

        self.make_fifos(host)
        words = ["--base-dir", str(self.tree(host).base), *file, "--host", host.name, "--number", str(number)]
        words += ["--hosts", str(hosts), "--ranks", str(local.readers_per_host(self.spec))]
        # Should the supervisor be killed, it still removes its FIFOs.
        self._feeders[host.name] = self.agent(["pipe", *words], ended, host=host, tidies=True, own=True)
        host.await_files([str(path) for path in self.fifos(host)], there)

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
        if sync is None or sync.is_over:
            if local.synced_checkpoints(self.spec) is not None:
                self._syncs["checkpoints"] = sync = Sync(self._sync_failed)
                sync.process = self.agent(["sync", "up", *self._sync_words()], sync.over)
            elif (sync := self.bring_checkpoints()) is not None:
                self._syncs["checkpoints"] = sync
        if self._look_timer is None and local.synced_intermediate(self.spec) is not None:
            self._look_timer = self.backend.loop.call_later(_LOOK_S, self._look_again)

    def bring_checkpoints(self) -> Sync | None:
        """Bring checkpoints to the caller's folder, where that is another one."""
        return None

    def _sync_failed(self, failure: Failure) -> None:
        if self.backend.running:
            self.fail(failure)

    def _look_again(self) -> None:
        """Most hosts write no intermediate output: an agent is started for those that do."""
        self._look(lambda: None)
        self._look_timer = self.backend.loop.call_later(_LOOK_S, self._look_again)

    def _look(self, then: Then) -> None:
        def look(host: Host, next_: Then) -> None:
            def found(files: object) -> None:
                if files and f"intermediate of {host.name}" not in self._syncs:
                    self._start_intermediate(host)
                next_()

            host.list_files(str(self.tree(host).output_intermediate), found)

        each(list(self.hosts.values()), look, then)

    def _start_intermediate(self, host: Host) -> None:
        uri = local.synced_intermediate(self.spec) or ""
        sync = self._syncs[f"intermediate of {host.name}"] = Sync()

        def over(failure: Failure | None) -> None:
            if failure is not None:  # as with SageMaker's toolkit, the job is not lost for that
                self.warn(failure.message, host.name)
            sync.over(None)

        words = ["--dir", str(self.tree(host).output_intermediate), "--uri", uri, "--host", host.name]
        sync.process = self.agent(["sync", "up", *words, "--what", "intermediate output"], over, host=host)

    def warn(self, text: str, host: str | None = None) -> None:
        """Tell the user of something."""
        host = host or self.spec.hosts[0]
        self.backend.callbacks.output(host, Event(kind="warning", host=host, data={"message": text}).to_line())

    # --- after them ---

    def end_feeders(self) -> None:
        """Nobody reads any more."""
        for host in list(self._feeders):
            self.end_feeder(host)

    def host_ended(self, host: str) -> None:
        """Nobody reads on a host any more.

        Where hosts do not come and go, feeders stay until all have ended: what one says of its data may be the reason.
        """
        if not self.backend.running:
            self.end_feeders()
        elif launchers.of(self.spec.strategy).membership_changes:
            self.end_feeder(host)

    def end_feeder(self, host: str) -> None:
        """Nobody reads on a host any more."""
        if (process := self._feeders.pop(host, None)) is not None:
            process.signal(signal.SIGTERM)

    @property
    def syncing(self) -> list[HostProcess]:
        """What brings what was saved: it outlives an end without grace, until everything is brought."""
        return [sync.process for sync in self._syncs.values() if sync.process is not None]

    def end_agents(self) -> None:
        """End all but what brings what was saved."""
        syncing = self.syncing
        for process in list(self._agents):
            if process not in syncing:
                process.signal(signal.SIGKILL)

    def bring_saved(self, done: Done) -> None:
        """Have the rest of what was saved brought; nothing is written there any more."""
        looking, self._look_timer = self._look_timer, None
        failures: list[Failure] = []

        def finish(sync: Sync, then: Then) -> None:
            def over(failure: Failure | None) -> None:
                if failure is not None:
                    failures.append(failure)
                then()

            sync.finish(over)

        def looked() -> None:
            each(list(self._syncs.values()), finish, lambda: done(next(iter(failures), None)))

        if looking is not None:
            looking.cancel()
            self._look(looked)
        else:
            looked()

    def end_attempt(self, then: Then, host: str | None = None) -> None:
        """Have all that was saved brought, before another attempt begins with it; nothing is written there any more."""

        def brought(failure: Failure | None) -> None:
            if failure is not None:  # the next attempt's tries again, and fails the job if it cannot
                self.warn(failure.message, host)
            self._syncs = {}  # what is saved from now on is another attempt's
            then()

        self.bring_saved(brought)

    @abc.abstractmethod
    def collect(self, done: Done) -> None:
        """Bring what the hosts have saved; nothing runs there any more."""

    def lost(self) -> None:
        """The machine is gone."""
        self.is_lost = True
        self.cancel()
        for sync in list(self._syncs.values()):
            sync.ended(None)

    def cancel(self) -> None:
        """Look no more."""
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    def agent(
        self,
        words: Sequence[str],
        done: Done,
        *,
        host: Host | None = None,
        tidies: bool = False,
        own: bool = False,
        on_output: Callable[[bytes], None] | None = None,
    ) -> HostProcess:
        """Run the agent on the machine.

        Args:
            words: Its words.
            done: Called when it has ended, with its last line as the reason if it failed.
            host: Into whose log what it says goes; default: the first's.
            tidies: As for :meth:`Host.run`.
            own: Whether it is for that host alone.
            on_output: Takes what it writes, where that is not for the log.
        """
        host = host or self.first
        name = host.name
        said = bytearray()

        def say(data: bytes) -> None:
            said.extend(data)
            self.backend.callbacks.output(name, data)

        def ended(end: ProcessEnd) -> None:
            self._agents.remove(process)
            if end.exit_code == 0:
                done(None)
                return
            lines = said.decode("utf-8", "replace").strip().splitlines()
            # One that was killed had not come to say why: what it said last was something else.
            told = lines[-1] if lines and end.signal is None else ""
            text = end.error or told or f"the host agent {describe_end(end.exit_code, end.signal)}."
            apart = own or not self.shared
            whose, process_name = (name, "agent") if apart else (None, None)
            done(Failure(cause=Cause.CONFIGURATION, message=text, host=whose, process=process_name))

        process = host.run(
            agent_command(host, words),
            {name: value for name, value in os.environ.items() if name.startswith(_AWS)},
            on_output or say,
            ended,
            tidies=tidies,
            on_errors=say if on_output is not None else None,
        )
        self._agents.append(process)
        return process


class Sync:
    """What brings files of a host somewhere until its input ends.

    Args:
        failed: Called with the reason when it fails before it was told to finish.

    Attributes:
        process: What does so.
        failure: Why not all could be brought.
        ended: Called when it has ended, or its host is lost.
    """

    def __init__(self, failed: Callable[[Failure], None] = lambda failure: None) -> None:
        self.process: HostProcess | None = None
        self.ended: Done = self.over
        self.failure: Failure | None = None
        self.is_over = False
        self._failed = failed
        self._waiting: list[Done] = []

    def over(self, failure: Failure | None) -> None:
        """It has ended."""
        self.is_over = True
        self.failure = self.failure or failure
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(self.failure)
        if not waiting and self.failure is not None:
            self._failed(self.failure)

    def finish(self, then: Done) -> None:
        """Have the rest brought."""
        if self.is_over or self.process is None:
            then(self.failure)
            return
        self._waiting.append(then)
        if len(self._waiting) == 1:
            self.process.close_input()


def agent_command(host: Host, words: Sequence[str]) -> list[str]:
    """Return the argv of an agent on a host."""
    return [host.facts.python, "-I", f"{host.facts.package}/__main__.py", "agent", *words]


def each(items: Sequence[_T], act: Callable[[_T, Then], None], then: Then) -> None:
    """Do something for each of several at once, and go on when all have called back."""
    left = len(items)
    if not left:
        then()
        return

    def one() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    for item in items:
        act(item, one)


def problem(message: str, cause: Cause = Cause.CONFIGURATION) -> Failure:
    """A failure of the job's settings or surroundings, not of its processes."""
    return Failure(cause=cause, message=message)
