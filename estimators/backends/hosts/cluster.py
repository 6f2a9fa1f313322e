"""A job's hosts, wherever they come from: everything that a backend does, over what a provider offers.

A host has its files to itself. Its tree, the code and local data are pushed to it; what SageMaker's platform does for a
host, the agent does on the host itself; checkpoints come back while the job runs, models and outputs at its end.
"""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from container.contract import pipes, variables
from container.contract.failures import Cause, Failure, describe_end
from container.contract.layout import MLTree
from container.contract.strategies import ElasticHorovod
from container.contract.wire import Event
from container.system.loop import Loop, Timer
from estimators.backends import config, local, trees
from estimators.backends.agents import HostAgents, problem
from estimators.backends.base import Backend, Callbacks, HostEnd
from estimators.backends.hosts.checkpoints import Incoming
from estimators.backends.hosts.provider import Host, HostProcess, HostProvider, ProcessEnd
from estimators.job.errors import UnsupportedError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.record import JobRecord

Then = Callable[[], None]

#: The caller's variables that a host's agents need to reach S3.
_AWS = ("AWS_", "S3_ENDPOINT_URL")
#: From the word for it to SIGKILL when a job is ended without grace, in seconds.
_KILL_AFTER = 0.5
#: How often a host's agent looks for checkpoints to bring, in seconds.
_LOOK_S = 0.5


@functools.cache
def cluster_over(provider: type[HostProvider]) -> type[HostCluster]:
    """Return the backend of a provider's hosts."""
    members = {
        "provider_type": provider,
        "name": provider.name,
        "elastic": provider.capabilities.elastic,
        "__doc__": f"Runs jobs on the hosts of {provider.name!r}.",
    }
    return type(f"{provider.__name__}Cluster", (HostCluster,), members)


class HostCluster(Backend):
    """Runs a job on hosts of a provider; see :class:`estimators.backends.base.Backend`."""

    provider_type: ClassVar[type[HostProvider]]

    def __init__(
        self, loop: Loop, record: JobRecord, spec: TrainingJobSpec, options: RunOptions, callbacks: Callbacks
    ) -> None:
        super().__init__(loop, record, spec, options, callbacks)
        self._provider = self.provider_type(loop, spec, options)
        self._provider.tell = self._tell
        self._provider.protected = self.protected
        self._members: dict[str, _Member] = {}
        self._token = ""
        self._attempt = 0
        self._ending = False
        self._closed = False
        self._bringing = False  # what the attempt has saved, before its end is told
        self._kill_timer: Timer | None = None

    @classmethod
    def check(cls, spec: TrainingJobSpec, options: RunOptions) -> None:
        """Refuse what the provider refuses, and channels that nobody can feed."""
        for channel in spec.inputs:
            if (refusal := local.channel_refusal(spec, channel)) is not None:
                raise UnsupportedError(f"channel {channel.name!r} on instance_type {cls.name!r}: {refusal}")
        for refusal in cls.provider_type.validate(spec, options):
            raise UnsupportedError(f"instance_type {cls.name!r}: {refusal}")

    @property
    def running(self) -> bool:
        """Whether a toolkit runs, or its end is still to be told."""
        return self._bringing or any(member.trains for member in self._members.values())

    # --- starting ---

    def start(self, attempt: int) -> None:
        """Get the hosts that are lacking, bring everything to all of them, start the toolkits."""
        self._attempt = attempt
        self._ending = False
        self._token = os.urandom(32).hex()
        if self._kill_timer is not None:
            self._kill_timer.cancel()  # it was for what an earlier attempt left
        there = [self._members[host] for host in self.spec.hosts if host in self._members]
        _each(there, lambda member, then: member.save_checkpoints(then), self._acquire_all)

    def _acquire_all(self) -> None:
        """All that an earlier attempt has saved is here."""
        if self._ending or self._closed:
            return
        attempt = self._attempt
        members = []
        for host in self.spec.hosts:
            member = self._members.get(host)
            if member is not None and (member.lost or self._placed or member.noticed):
                # It stays where it was, or discovery says anew where, or it will be taken.
                member.release()
            if member is None or member.lost:
                member = self._members[host] = _Member(self, host)
            members.append(member)
        number = {member.name: index for index, member in enumerate(members)}

        apart = isinstance(self.spec.strategy, ElasticHorovod)

        def prepare(member: _Member, then: Then) -> None:
            def prepared() -> None:
                if not apart:
                    then()
                elif attempt == self._attempt and not self._ending and not self._closed:
                    if not self.running:
                        self.callbacks.secondary_status("Training", "")
                    member.train(f"{member.there.address}:0", listens=False)

            def there() -> None:
                if self.spec.inputs:
                    self.callbacks.secondary_status("Downloading", "Bringing the input channels.")
                member.prepare(number[member.name], len(members), prepared)

            member.acquire(there)

        def start() -> None:
            if attempt == self._attempt and not self._ending and not self._closed:
                self._start_toolkits(members)

        _each(members, prepare, start)

    def _tell(self, text: str) -> None:
        if not self.running and not self._ending and not self._closed:
            self.callbacks.secondary_status("Pending", text)

    def _start_toolkits(self, members: Sequence[_Member]) -> None:
        self.callbacks.secondary_status("Training", "")
        first = members[0]

        def start(port: int) -> None:
            if self._ending or self._closed:
                return
            address = f"{first.there.address}:{port}"
            for member in members:
                member.train(address, listens=member is first)

        if len(members) == 1:
            first.train(f"{first.there.address}:0", listens=False)
        else:
            first.there.listen(start)

    @property
    def addresses(self) -> dict[str, str]:
        """Where the hosts reach each other."""
        return {
            member.name: member.host.address
            for member in self._members.values()
            if member.host is not None and not member.lost
        }

    def fail(self, failure: Failure) -> None:
        """Something that every host needs has failed."""
        if not self._ending and not self._closed:
            self.callbacks.failed(failure)

    # --- hosts that come and go ---

    def meeting_place(self) -> tuple[str, str]:
        """This machine as a host sees it."""
        first = next(member.there for member in self._members.values() if member.host is not None)
        return first.caller_address, first.interface

    @property
    def _placed(self) -> bool:
        """Whether discovery says which machine a host is on, and the provider heeds it."""
        strategy = self.spec.strategy
        discovers = isinstance(strategy, ElasticHorovod) and strategy.discovery is not None
        return discovers and hasattr(self._provider, "locate")

    def locate(self, host: str, place: str) -> None:
        """Tell the provider, if it heeds discovery."""
        if self._placed:
            self._provider.locate(host, place)  # type: ignore[attr-defined]

    def withdraw(self, host: str) -> None:
        """End a host for which there is no machine yet."""
        member = self._members.get(host)
        if member is not None and member.host is None and member.preparing:
            member.lost = True
            member.preparing = False
            self.callbacks.host_ended(HostEnd(host=host))

    def add_host(self, host: str) -> None:
        """Get it, bring the inputs, start its toolkit."""
        member = self._members[host] = _Member(self, host, joins=True)

        def start() -> None:
            if not self._ending and not self._closed:
                member.train(f"{member.there.address}:0", listens=False)

        member.acquire(lambda: member.prepare(0, 1, start))

    def refresh_checkpoints(self, host: str, then: Then) -> None:
        """Bring the newest checkpoints to a host: it would go on from them if all that train were lost."""
        self._members[host].refresh_checkpoints(then)

    def lost(self, member: _Member, reason: str) -> None:
        """A host is gone."""
        if self._closed:
            return
        failure = Failure(cause=Cause.HOST_LOST, message=f"the host was lost: {reason}.", host=member.name)
        elastic = isinstance(self.spec.strategy, ElasticHorovod)
        others = any(other.trains or other.preparing for other in self._members.values() if not other.lost)
        if member.trains or member.joins or (elastic and member.preparing and others):
            member.trained()
            self.ended(member, HostEnd(host=member.name, failure=None if self._ending else failure))
        elif member.preparing:
            self.fail(failure)

    def ended(self, member: _Member, end: HostEnd) -> None:
        """A host's toolkit has ended; everything that it printed was given."""
        if not self.running:
            for other in self._members.values():
                other.end_feeder()
            self._bringing = True

            def brought() -> None:
                self._bringing = False
                self.callbacks.host_ended(end)

            # Whether the attempt got anywhere, and so what follows it, is judged by what it has saved.
            _each(list(self._members.values()), lambda one, then: one.bring_saved(then), brought)
            return
        if isinstance(self.spec.strategy, ElasticHorovod):
            member.end_feeder()
            member.finish(lambda failure: member.release())  # another host may need what it has
        self.callbacks.host_ended(end)

    @property
    def is_ending(self) -> bool:
        """Whether what ends now was told to."""
        return self._ending

    @property
    def attempt(self) -> int:
        """The number of this start of the job."""
        return self._attempt

    @property
    def token(self) -> str:
        """What the hosts show each other."""
        return self._token

    @property
    def provider(self) -> HostProvider:
        """Where the hosts come from."""
        return self._provider

    # --- ending ---

    def stop(self) -> None:
        """SIGTERM to every toolkit; it passes it on and waits for the scripts."""
        self._signal(signal.SIGTERM)

    def end_now(self) -> None:
        """SIGINT to every toolkit: it ends everything at once. What is left after half a second is killed."""
        self._ending = True
        self._signal(signal.SIGINT)
        members = list(self._members.values())
        for member in members:
            member.end_agents()

        def kill() -> None:
            for member in members:
                member.abort()

        self._kill_timer = self.loop.call_later(_KILL_AFTER, kill)

    def _signal(self, number: int) -> None:
        for member in self._members.values():
            if member.trains and member.toolkit is not None:
                member.toolkit.signal(number)

    def say(self, host: str, words: bytes) -> None:
        """A word on the host's lifeline."""
        if (member := self._members.get(host)) is not None and member.trains and member.toolkit is not None:
            member.toolkit.write(words)

    def kill_host(self, host: str) -> None:
        """SIGKILL to the host's toolkit; the agent there ends what it leaves."""
        if (member := self._members.get(host)) is not None and member.trains and member.toolkit is not None:
            member.toolkit.signal(signal.SIGKILL)

    def collect_outputs(self) -> None:
        """Bring the rest of the checkpoints, models and outputs, then pack them."""
        failures: list[Failure] = []

        def finish(member: _Member, then: Then) -> None:
            def done(failure: Failure | None) -> None:
                if failure is not None:
                    failures.append(failure)
                then()

            member.finish(done)

        def pack() -> None:
            HostAgents(self).collect(
                lambda failure: self.callbacks.outputs_collected(failure or next(iter(failures), None))
            )

        _each(list(self._members.values()), finish, pack)

    def cleanup(self) -> None:
        """Let the hosts go, at which everything of the job ends there."""
        self._closed = True
        for member in self._members.values():
            member.release()
        self._provider.close()


class _Member:
    """One host of the job, as the cluster sees it.

    Attributes:
        name: Its name.
        host: The host, when it is there.
        joins: Whether it came to a job that ran.
        lost: Whether it is gone.
        noticed: Whether it will be taken away.
        preparing: Whether it is being prepared.
        toolkit: Its training process, when that was started.
        trains: Whether the end of that will still be told.
    """

    def __init__(self, cluster: HostCluster, name: str, *, joins: bool = False) -> None:
        self._cluster = cluster
        self._record = cluster.record
        self._options = cluster.options
        self.name = name
        self.host: Host | None = None
        self.joins = joins
        self.lost = False
        self.noticed = False
        self.preparing = False
        self.toolkit: HostProcess | None = None
        self.trains = False
        self._feeder: HostProcess | None = None
        self._mount: HostProcess | None = None
        self._syncs: dict[str, _Sync] = {}
        self._helpers: list[HostProcess] = []
        self._channels: dict[str, dict[str, object]] = {}
        self._submit_directory: str | None = None
        self._finished = False
        self._finishing: list[Callable[[Failure | None], None]] | None = None
        self._refreshing: list[Then] = []

    @property
    def there(self) -> Host:
        """The host, which is there."""
        assert self.host is not None
        return self.host

    @property
    def _spec(self) -> TrainingJobSpec:
        return self._cluster.spec

    @property
    def tree(self) -> MLTree:
        """Its file tree, where it is on the host."""
        return MLTree(Path(self.there.facts.root) / "ml")

    # --- getting ready ---

    def acquire(self, then: Then) -> None:
        """Get the host, unless it is there."""
        self.preparing = True
        if self.host is not None:
            then()
            return

        def ready(host: Host) -> None:
            if self.lost:  # it is not needed any more
                host.close()
                self._cluster.provider.release(host)
                return
            self.host = host
            host.on_lost = self._lost
            host.on_notice = self._has_notice
            then()

        self._cluster.provider.acquire(self.name, ready, self._lost)

    def _lost(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = True
        if self._finishing is not None:
            text = f"{self.name} was lost while its outputs were brought here: {reason}."
            self._finish_is_over(Failure(cause=Cause.HOST_LOST, message=text, host=self.name))
        for sync in list(self._syncs.values()):
            sync.ended(None)
        self._cluster.lost(self, reason)

    def _has_notice(self, seconds: float) -> None:
        if not self.lost and not self.noticed:
            self.noticed = True
            self._cluster.callbacks.interrupted(self.name, seconds)

    def prepare(self, number: int, hosts: int, then: Then) -> None:
        """Bring everything that the toolkit needs; it is the ``number``-th of so many."""
        host = self.there
        self._finished = False
        self.toolkit = None
        host.remove(["ml/model", "ml/output", "ml/input", "ml/pipe_state", "source"])
        pushes: list[tuple[Path, str]] = []
        try:
            pushes += self._code()
            pushes += self._write_config()
            channels = self._plan_channels(pushes)
        except OSError as error:
            self._cluster.fail(problem(f"the files of {self.name} could not be written: {error}"))
            return

        def push(item: tuple[Path, str], then: Then) -> None:
            def done(error: str | None) -> None:
                if error is None:
                    then()
                else:
                    self._cluster.fail(problem(f"{item[0]} could not be brought to {self.name}: {error}"))

            host.push(item[0], item[1], done)

        def pushed() -> None:
            if channels:
                self._prepare_channels(number, hosts, then)
            else:
                then()

        def restored() -> None:
            _each(pushes, push, pushed)

        self._restore_checkpoints(restored)

    def _code(self) -> list[tuple[Path, str]]:
        """What to push of the user's code, and where the host finds it."""
        self._submit_directory = None
        place = self._spec.submit_directory
        if local.is_s3(place or ""):
            # The archive was unpacked into the record: with its code there, a host does not look for it in S3.
            return [(self._record.source_dir, "ml/code")] if self._record.source_dir.is_dir() else []
        path = local.local_path(place) if place else None
        if path is None:
            return []
        self._submit_directory = f"{self.there.facts.root}/source{'' if path.is_dir() else f'/{path.name}'}"
        return [(path, "source")]

    @property
    def _facts(self) -> config.BackendFacts:
        return config.BackendFacts(
            network_interface=self.there.interface,
            instance_type=self._options.asked_instance_type,
            submit_directory=self._submit_directory,
        )

    def _write_config(self) -> list[tuple[Path, str]]:
        """Write the configuration into the record, from where it goes to the host."""
        tree = self._record.tree(self.name)
        tree.config.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, text in config.host_config(self._spec, self.name, self._facts).files(tree).items():
            Path(path).write_text(text, encoding="utf-8")
        return [(tree.config, "ml/input/config")]

    def _plan_channels(self, pushes: list[tuple[Path, str]]) -> bool:
        """Add local data to what is pushed; whether something is left that the host's agent has to bring."""
        self._channels = {}
        for name, values in local.agent_channels(self._spec).items():
            path = local.local_path(str(values["uri"]))
            if path is None:
                self._channels[name] = values
                continue
            path = path.resolve()
            whole = values.get("mode") != "Pipe" and values.get("data_type", "S3Prefix") == "S3Prefix"
            if whole and values.get("distribution", "FullyReplicated") == "FullyReplicated":
                pushes.append((path, f"ml/input/data/{name}"))  # the host's own copy, as it is
                continue
            place = f"inputs/{name}"
            pushes.append((path, place))
            there = f"{self.there.facts.root}/{place}{'' if path.is_dir() else f'/{path.name}'}"
            self._channels[name] = {**values, "uri": there}
        if self._channels:
            file = self._record.tree(self.name).base / "channels" / "channels.json"
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.write_text(json.dumps(self._channels), encoding="utf-8")
            pushes.append((file, "agent"))
        return bool(self._channels)

    def _restore_checkpoints(self, then: Then) -> None:
        """Bring the job's checkpoints to the host, unless it has them."""
        if local.synced_checkpoints(self._spec) is not None:
            self._agent(["sync", "down", *self._sync_words()], self._going_on(then))
            return
        folder = trees.checkpoints(self._record, self._spec)
        folder.mkdir(parents=True, exist_ok=True)

        def compare(files: object) -> None:
            assert isinstance(files, dict)
            mine = {
                str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
                for path in folder.rglob("*")
                if path.is_file() and not path.name.startswith(".")
            }
            same = mine.keys() == files.keys() and all(
                mine[name][0] == files[name][0] and abs(mine[name][1] - files[name][1]) < 1_000_000 for name in mine
            )
            if same or not mine:
                then()
                return
            self.there.remove(["ml/checkpoints"])
            self.there.push(folder, "ml/checkpoints", self._pushed_checkpoints(then))

        self.there.list_files("ml/checkpoints", compare)

    def _pushed_checkpoints(self, then: Then) -> Callable[[str | None], None]:
        def done(error: str | None) -> None:
            if error is None:
                then()
            else:
                self._cluster.fail(problem(f"the checkpoints could not be brought to {self.name}: {error}"))

        return done

    def _going_on(self, then: Then) -> Callable[[Failure | None], None]:
        def done(failure: Failure | None) -> None:
            if failure is None:
                then()
            else:
                self._cluster.fail(failure)

        return done

    def _prepare_channels(self, number: int, hosts: int, then: Then) -> None:
        base = ["--base-dir", str(self.tree.base)]
        file = ["--channels", f"{self.there.facts.root}/agent/channels.json"]
        place = ["--number", str(number), "--hosts", str(hosts)]

        def mounted() -> None:
            self._start_feeder([*base, *file, "--host", self.name, *place], then)

        def prepared() -> None:
            if local.mounted(self._spec) and not self.joins:
                self._start_mount([*base, *file], mounted)
            else:
                mounted()

        self._agent(["prepare", *base, *file, *place], self._going_on(prepared))

    def _start_mount(self, words: list[str], then: Then) -> None:
        mounts = f"{self.there.facts.root}/mounts"

        def ended(failure: Failure | None) -> None:
            if not self._finished:
                self._cluster.fail(failure or problem("the agent of the FastFile channels ended early."))

        self._mount = self._agent(["mount", *words, "--mounts", mounts], ended)
        self.there.await_files(["mounts/ready"], lambda error: then())

    def _start_feeder(self, words: list[str], then: Then) -> None:
        if not local.has_pipes(self._spec):
            then()
            return
        readers = local.readers_per_host(self._spec)
        waiting = True

        def ended(failure: Failure | None) -> None:
            # After a SIGTERM of ours there is none.
            if failure is not None and (waiting or self._cluster.running) and not self._cluster.is_ending:
                self._cluster.fail(failure)

        def there(error: str | None) -> None:
            nonlocal waiting
            waiting = False
            then()

        self._feeder = self._agent(["pipe", *words, "--ranks", str(readers)], ended)
        root = Path(self.there.facts.root)
        first = [
            pipes.fifo(pipes.folder(self.tree.data, local_rank, readers), channel, 0)
            for local_rank in range(readers)
            for channel in local.piped(self._spec)
        ]
        self.there.await_files([str(path.relative_to(root)) for path in first], there)

    # --- training ---

    def train(self, control_address: str, *, listens: bool) -> None:
        """Start the toolkit."""
        cluster, host = self._cluster, self.there
        self._start_syncs()
        env = {
            **config.host_config(self._spec, self.name, self._facts).environment,
            variables.BASE_DIR: str(self.tree.base),
            variables.JOB_NAME: self._spec.name,
            variables.ATTEMPT: str(cluster.attempt),
            variables.CONTROL_ADDRESS: control_address,
            variables.ADDRESSES: json.dumps(cluster.addresses, separators=(",", ":")),
            variables.JOB_TOKEN: cluster.token,
            variables.STOP_GRACE: f"{self._options.longest_grace:g}",
            variables.START_TIMEOUT: f"{self._options.start_timeout:g}",
            variables.UMASK: f"{cluster.umask:o}",
            variables.JOB_MARK: self._spec.name,
            **config.failure_environment(self._spec, self._options, cluster.attempt),
        }
        if cluster.provider_type.capabilities.shared_machine:
            env[variables.SHARED_MACHINE] = "1"
        self.preparing = False
        self.trains = True
        cluster.callbacks.output(self.name, b"")  # from here on it has to show that it is alive
        self.toolkit = host.run(
            [host.facts.python, "-I", f"{host.facts.package}/__main__.py", "train"],
            env,
            lambda data: cluster.callbacks.output(self.name, data),
            self._ended,
            lifeline=variables.LIFELINE_FD,
            listener=variables.CONTROL_FD if listens else None,
            # As local_process: MPI's ranks must give way to each other, Gloo's sleep.
            session=isinstance(self._spec.strategy, ElasticHorovod),
            runtime=variables.RUNTIME_DIR,
        )

    def _ended(self, end: ProcessEnd) -> None:
        if not self.trains:
            return
        self.trained()
        failure = None
        if end.error is not None:
            failure = problem(f"{self.name} could not be started: {end.error}", Cause.LAUNCH)
        elif end.signal is not None and not self._cluster.is_ending:
            failure = Failure(
                cause=Cause.PROCESS,
                message=f"the host's training process was killed by {signal.Signals(end.signal).name}.",
                host=self.name,
                process="toolkit",
                signal=end.signal,
            )
        code = 255 if end.error is not None else end.exit_code
        self._cluster.ended(self, HostEnd(host=self.name, exit_code=code, signal=end.signal, failure=failure))

    def trained(self) -> None:
        """Its end is known."""
        self.trains = self.joins = False

    # --- beside it ---

    def _sync_words(self) -> list[str]:
        words = ["--dir", str(self.tree.checkpoints), "--host", self.name]
        uri = local.synced_checkpoints(self._spec)
        return [*words, "--uri", uri] if uri is not None else words

    def _start_syncs(self) -> None:
        """Start what brings checkpoints and intermediate output here or to S3."""
        if "checkpoints" not in self._syncs:
            if local.synced_checkpoints(self._spec) is not None:
                self._syncs["checkpoints"] = sync = _Sync()
                sync.process = self._agent(["sync", "up", *self._sync_words()], sync.over)
            else:
                self._syncs["checkpoints"] = self._bring_checkpoints()
        uri = local.synced_intermediate(self._spec)
        if uri is not None and "intermediate" not in self._syncs:
            self._syncs["intermediate"] = sync = _Sync()
            words = ["--dir", str(self.tree.output_intermediate), "--uri", uri, "--host", self.name]
            sync.process = self._agent(["sync", "up", *words, "--what", "intermediate output"], self._warn_over(sync))

    def _warn_over(self, sync: _Sync) -> Callable[[Failure | None], None]:
        def over(failure: Failure | None) -> None:
            if failure is not None:  # as with SageMaker's toolkit, the job is not lost for that
                event = Event(kind="warning", host=self.name, data={"message": failure.message})
                self._cluster.callbacks.output(self.name, event.to_line())
            sync.over(None)

        return over

    def _bring_checkpoints(self) -> _Sync:
        folder = trees.checkpoints(self._record, self._spec)
        sync = _Sync()
        incoming = Incoming(folder, self.name, lambda line: self._cluster.callbacks.output(self.name, line))

        def take(data: bytes) -> None:
            try:
                incoming.feed(data)
            except (OSError, ValueError) as error:
                sync.failure = sync.failure or problem(f"the checkpoints could not be written to {folder}: {error}")

        def over(failure: Failure | None) -> None:
            incoming.close()
            sync.over(sync.failure or failure)

        sync.ended = over
        words = ["sync", "out", *self._sync_words(), "--every", f"{_LOOK_S:g}"]
        sync.process = self._agent(words, over, on_output=take)
        return sync

    def bring_saved(self, then: Then) -> None:
        """Have all that was saved brought here."""
        syncs = list(self._syncs.values()) if not self.lost else []
        _each(syncs, lambda sync, next_: sync.finish(lambda failure: next_()), then)

    def save_checkpoints(self, then: Then) -> None:
        """Have all that was saved brought, before another attempt begins with it."""
        self.bring_saved(then)
        self._syncs = {}

    def refresh_checkpoints(self, then: Then) -> None:
        """Bring what the job has saved since the host was prepared; nothing of it may train meanwhile."""
        self._refreshing.append(then)
        if len(self._refreshing) > 1:
            return  # it is at it

        def over() -> None:
            if not self.lost and self.trains:
                self._start_syncs()
            waiting, self._refreshing = self._refreshing, []
            for callback in waiting:
                callback()

        # What brings its own checkpoints ends first: it would take those that come for the host's.
        self.save_checkpoints(lambda: over() if self.lost else self._restore_checkpoints(over))

    def end_feeder(self) -> None:
        """Nobody reads any more."""
        if self._feeder is not None:
            self._feeder.signal(signal.SIGTERM)
            self._feeder = None

    def end_agents(self) -> None:
        """End all but what brings what was saved."""
        syncing = [sync.process for sync in self._syncs.values()]
        for process in self._helpers:
            if process not in syncing:
                process.signal(signal.SIGKILL)

    def abort(self) -> None:
        """Kill what is left of it, but for what brings what was saved."""
        if self.host is not None and not self.lost and self.trains:
            self.host.abort([sync.process for sync in self._syncs.values() if sync.process is not None])

    # --- after it ---

    def finish(self, done: Callable[[Failure | None], None]) -> None:
        """Bring what it has saved and its outputs."""
        if self._finishing is not None:  # it is at it
            self._finishing.append(done)
            return
        if self.host is None or self.lost or self._finished:
            done(None)
            return
        self._finished = True
        self._finishing = [done]
        failures: list[Failure] = []
        if self._mount is not None:
            self._mount.close_input()

        def finish_sync(sync: _Sync, then: Then) -> None:
            def over(failure: Failure | None) -> None:
                if failure is not None:
                    failures.append(failure)
                then()

            sync.finish(over)

        tree = self._record.tree(self.name)
        wanted = [("ml/model", tree.model), ("ml/output", tree.output)]

        def pull(item: tuple[str, Path], then: Then) -> None:
            def pulled(error: str | None) -> None:
                if error is not None:
                    failures.append(problem(f"the outputs of {self.name} could not be brought here: {error}"))
                then()

            item[1].mkdir(parents=True, exist_ok=True, mode=0o700)
            self.there.pull(item[0], item[1], pulled)

        def synced() -> None:
            self._syncs = {}
            if self.lost:
                over()
            else:
                _each(wanted, pull, over)

        def over() -> None:
            self._finish_is_over(next(iter(failures), None))

        _each(list(self._syncs.values()), finish_sync, synced)

    def _finish_is_over(self, failure: Failure | None) -> None:
        waiting, self._finishing = self._finishing or [], None
        for done in waiting:
            done(failure)

    def release(self) -> None:
        """Let the host go."""
        if self.host is not None:
            host, self.host = self.host, None
            self.lost = True
            host.close()
            self._cluster.provider.release(host)

    def _agent(
        self,
        words: Sequence[str],
        done: Callable[[Failure | None], None],
        on_output: Callable[[bytes], None] | None = None,
    ) -> HostProcess:
        """Run the host's agent there, its words into the host's log, its last line as the reason if it fails."""
        said = bytearray()

        def say(data: bytes) -> None:
            said.extend(data)
            self._cluster.callbacks.output(self.name, data)

        def ended(end: ProcessEnd) -> None:
            self._helpers.remove(process)
            if end.exit_code == 0:
                done(None)
                return
            lines = said.decode("utf-8", "replace").strip().splitlines()
            # One that was killed had not come to say why: what it said last was something else.
            told = lines[-1] if lines and end.signal is None else ""
            text = end.error or told or f"the host agent {describe_end(end.exit_code, end.signal)}."
            done(Failure(cause=Cause.CONFIGURATION, message=text, host=self.name, process="agent"))

        facts = self.there.facts
        environment = {name: value for name, value in os.environ.items() if name.startswith(_AWS)}
        process = self.there.run(
            [facts.python, "-I", f"{facts.package}/__main__.py", "agent", *words],
            environment,
            on_output or say,
            ended,
            on_errors=say if on_output is not None else None,
        )
        self._helpers.append(process)
        return process


class _Sync:
    """What brings files of a host somewhere until its input ends.

    Attributes:
        process: What does so.
        failure: Why not all could be brought.
        ended: Called when it has ended, or its host is lost.
    """

    def __init__(self) -> None:
        self.process: HostProcess | None = None
        self.ended: Callable[[Failure | None], None] = self.over
        self.failure: Failure | None = None
        self._over = False
        self._waiting: list[Callable[[Failure | None], None]] = []

    def over(self, failure: Failure | None) -> None:
        """It has ended."""
        self._over = True
        self.failure = self.failure or failure
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(self.failure)

    def finish(self, then: Callable[[Failure | None], None]) -> None:
        """Have the rest brought."""
        if self._over or self.process is None:
            then(self.failure)
            return
        self._waiting.append(then)
        self.process.close_input()


def _each(items: Sequence[object], act: Callable[..., None], then: Then) -> None:
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
