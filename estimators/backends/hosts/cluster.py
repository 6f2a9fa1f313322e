"""A job's hosts, wherever they come from: everything that a backend does, over what a provider offers.

Where hosts have their files to themselves, what they need is pushed to them and what they save comes back
(:mod:`.apart`); hosts of this machine have the caller's (:mod:`.here`).
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from container import launchers
from container.contract import variables
from container.contract.failures import Cause, Failure
from container.contract.layout import rebased
from container.system import processes
from container.system.loop import Loop, Timer
from container.system.running import Runner
from estimators.backends import config, local
from estimators.backends.base import Backend, Callbacks, Finding, HostEnd, Leftover
from estimators.backends.hosts import kept
from estimators.backends.hosts.platform import Done, Platform, Then, each, problem
from estimators.backends.hosts.provider import Host, HostProcess, HostProvider, ProcessEnd
from estimators.job.errors import UnsupportedError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.record import JobRecord

if TYPE_CHECKING:
    from estimators.backends.hosts.here import LocalPlatform
    from estimators.backends.hosts.membership import MembershipSource

#: Descriptors of the supervisor's own, and the most for each host that is elsewhere.
_OWN_DESCRIPTORS, _DESCRIPTORS_OF_A_HOST = 256, 8
#: So many hosts of an attempt are replaced because they would be taken away before it begins.
_REPLACEMENTS = 20
#: For how long toolkits are started at a stretch, in seconds.
_STARTING_S = 0.25
#: From the word for it to SIGKILL when a job is ended without grace, in seconds.
_KILL_AFTER = 0.5


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


def _allow_connections(hosts: int) -> None:
    """Raise this process's limit of open descriptors for so many hosts, as far as it may be raised.

    Each host has a connection of one or two, and a few while files are pushed to it; the usual limit is 1,024. It is
    the hosts' agents that start ranks, so none inherits it.
    """
    processes.allow_open_files(_OWN_DESCRIPTORS + _DESCRIPTORS_OF_A_HOST * hosts)


class HostCluster(Backend):
    """Runs a job on hosts of a provider; see :class:`estimators.backends.base.Backend`."""

    provider_type: ClassVar[type[HostProvider]]

    def __init__(
        self, loop: Loop, record: JobRecord, spec: TrainingJobSpec, options: RunOptions, callbacks: Callbacks
    ) -> None:
        super().__init__(loop, record, spec, options, callbacks)
        if not self.provider_type.capabilities.shared_machine:
            _allow_connections(spec.instance_count)
        self._provider = self.provide()
        self._provider.tell = self._tell
        self._provider.protected = self.protected
        self._provider.limit, self._provider.note = callbacks.limit, callbacks.note
        if (heed := getattr(self._provider, "heed", None)) is not None:
            heed(record.read_json(record.found_file) or {})
        self._here: LocalPlatform | None = None
        self._members: dict[str, _Member] = {}
        self._training: set[_Member] = set()  # those whose end will be told: of many hosts nobody counts them anew
        self._token = ""
        self._attempt = 0
        self._ending = False
        self._begun = False  # whether toolkits have been started in this attempt
        self._lacking: set[str] = set()  # the hosts that are not ready for it
        self._replaced = 0  # how many were taken away before it began
        self._unstarted: deque[_Member] = deque()  # the hosts whose toolkits are about to be started
        self._closed = False
        self._places: dict[str, str] = {}  # host -> where it is said to be in this attempt
        self._located: set[str] = set()  # the hosts of which that was ever said
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

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: RunOptions) -> dict[str, Any]:
        """What the provider makes of them, if it makes anything."""
        make = getattr(cls.provider_type, "portable", None)
        return dict(make(spec, options) if make is not None else options.backend_options)

    @classmethod
    def patient(cls, options: RunOptions) -> dict[str, Any]:
        """What the provider makes of them, if its jobs do not wait by themselves."""
        make = getattr(cls.provider_type, "patient", None)
        return dict(make(options) if make is not None else options.backend_options)

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """What the provider sees of the caller, if it looks."""
        look = getattr(cls.provider_type, "found", None)
        return look(spec) if look is not None else None

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """What the provider finds, if it looks."""
        find = getattr(cls.provider_type, "leftovers", None)
        if find is None:
            return ()
        found: Sequence[Leftover] = find(region) if cls.provider_type.capabilities.searched_by_name else find()
        return found

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        """What the provider says."""
        return cls.provider_type.diagnose()

    def provide(self) -> HostProvider:
        """Make the provider."""
        return self.provider_type(self.loop, self.spec, self.options)

    def platform(self) -> Platform:
        """What serves a host: hosts of this machine are served together."""
        if not self.provider_type.capabilities.shared_machine:
            from estimators.backends.hosts.apart import ApartPlatform

            return ApartPlatform(self)
        if self._here is None:
            from estimators.backends.hosts.here import LocalPlatform

            self._here = LocalPlatform(self, config.BackendFacts(instance_type=self.options.asked_instance_type))
        return self._here

    @property
    def running(self) -> bool:
        """Whether a toolkit runs, or its end is still to be told."""
        return self._bringing or bool(self._training)

    def training(self, member: _Member) -> None:
        """A host's toolkit is being started."""
        self._training.add(member)

    def trained(self, member: _Member) -> None:
        """The end of a host's toolkit is known."""
        self._training.discard(member)

    def trains(self, member: _Member) -> bool:
        """Whether the end of a host's toolkit will still be told."""
        return member in self._training

    # --- starting ---

    def start(self, attempt: int) -> None:
        """Get the hosts that are lacking, bring everything to all of them, start the toolkits."""
        self._attempt = attempt
        self._ending = self._begun = False
        self._replaced = 0
        self._token = os.urandom(32).hex()
        if self._kill_timer is not None:
            self._kill_timer.cancel()  # it was for what an earlier attempt left
        there = [self._members[host] for host in self.spec.hosts if host in self._members]
        each(there, lambda member, then: member.save_checkpoints(then), self._acquire_all)

    def _acquire_all(self) -> None:
        """All that an earlier attempt has saved is here."""
        if self._ending or self._closed:
            return
        self._lacking = set(self.spec.hosts)
        self._get_ready(self.spec.hosts)

    def _get_ready(self, hosts: Sequence[str]) -> None:
        """Get these hosts where they are lacking, and bring everything to them; the last of all starts the toolkits."""
        for host in hosts:
            member = self._members.get(host)
            if member is not None and (member.lost or host in self._located or member.noticed):
                # It is gone, or it is said anew where it is, or it will be taken.
                member.release()
                if (place := self._places.get(host)) is not None:
                    self.locate(host, place)  # that was said before the host was let go
            if member is None or member.lost:
                self._members[host] = _Member(self, host)
        attempt, number = self._attempt, {host: index for index, host in enumerate(self.spec.hosts)}
        apart = launchers.of(self.spec.strategy).membership_changes

        def prepared(member: _Member) -> None:
            if attempt != self._attempt or self._ending or self._closed or member is not self._members[member.name]:
                return
            if apart:
                self._train_apart(member)
                return
            self._lacking.discard(member.name)
            if not self._lacking:
                self._start_toolkits([self._members[host] for host in self.spec.hosts])

        def prepare(member: _Member) -> None:
            member.prepare(number[member.name], len(number), functools.partial(prepared, member))

        for member in [self._members[host] for host in hosts]:
            member.acquire(functools.partial(prepare, member))

    def noticed(self, member: _Member, seconds: float) -> None:
        """A host will be taken away: where nothing of the attempt runs yet, another one is got in its place."""
        elastic = launchers.of(self.spec.strategy).membership_changes
        if self._begun or elastic or self._replaced >= _REPLACEMENTS:
            self.callbacks.interrupted(member.name, seconds)
        elif member.preparing and not self._ending and not self._closed:
            self._replaced += 1
            self._tell(f"{member.name} will be taken away in {seconds:.0f} s, so another host takes its place.")
            self._lacking.add(member.name)
            self._get_ready([member.name])

    def _train_apart(self, member: _Member) -> None:
        """Start the toolkit of a host that waits for no other: the first that runs may be one that was added."""
        if not self.running:
            self._say_training()
        member.train(f"{member.there.address}:0", listens=False)

    def _say_training(self) -> None:
        self._begun = True
        self.callbacks.secondary_status("Training", "")

    def _tell(self, text: str) -> None:
        """Show what is waited for while nothing trains: an elastic job that has lost all hosts stays in training."""
        if not self.running and not self._ending and not self._closed:
            self.callbacks.secondary_status("Training" if self._begun else "Pending", text)

    def _start_toolkits(self, members: Sequence[_Member]) -> None:
        self._say_training()
        first = members[0]

        def start(port: int) -> None:
            if self._ending or self._closed:
                return
            if not port:
                self.fail(problem(f"{first.name} cannot listen at {first.there.address}.", Cause.LAUNCH))
                return
            address = f"{first.there.address}:{port}"
            ways = {first.name: address}

            def look(member: _Member, then: Then) -> None:
                def found(way: str) -> None:
                    ways[member.name] = way
                    then()

                self._find_way(member, first, port, found)

            def train() -> None:
                if not (self._ending or self._closed):
                    neighbours = self.neighbours()  # the same for all
                    for member in members:
                        self.training(member)
                    self._unstarted.extend(members)
                    self._start_some(
                        lambda member: member.train(ways[member.name], listens=member is first, neighbours=neighbours)
                    )

            if first.platform.shared:
                ways = {member.name: address for member in members}
                train()
            else:
                each(members[1:], look, train)

        if len(members) == 1:
            first.train(f"{first.there.address}:0", listens=False)
        else:
            first.there.listen(start)

    def _start_some(self, train: Callable[[_Member], None]) -> None:
        """Start toolkits for a while, then the others when the loop has done everything else.

        Starting hundreds of processes on a few cores takes minutes, in which the supervisor has to answer.
        """
        until = time.monotonic() + _STARTING_S
        while self._unstarted:
            if time.monotonic() > until:
                self.loop.call_later(0.0, lambda: self._start_some(train))
                return
            member = self._unstarted.popleft()
            if member.trains:  # it was not lost meanwhile
                train(member)

    def _start_no_more(self) -> None:
        """Leave out the toolkits that have not been started: the job is being ended."""
        unstarted = [member for member in self._unstarted if member.trains]
        self._unstarted.clear()
        for member in unstarted:
            member.trained()
            self.loop.call_later(0.0, functools.partial(self.ended, member, HostEnd(host=member.name)))

    def _find_way(self, member: _Member, first: _Member, port: int, found: Callable[[str], None]) -> None:
        """Find how a host connects to the one that listens: directly, or through what the provider has to both.

        A strategy whose processes connect by themselves has only the direct way; without one the job fails.
        """
        address = first.there.address

        def reached(error: str | None) -> None:
            if self._ending or self._closed or member.lost or first.lost:
                return
            bridge = getattr(self._provider, "bridge", None)
            launcher = launchers.launcher_of(self.spec.strategy)
            said = f"{member.name} ({member.there.address}) does not reach {first.name} at {address}:{port} ({error})"
            if error is None:
                found(f"{address}:{port}")
            elif launchers.of(self.spec.strategy).connects or bridge is None:
                text = (
                    f"{said}, but the processes of strategy {launcher!r} need direct connections between the hosts. "
                    "Open the ports between the hosts, or set the address at which the hosts reach each other."
                )
                self.fail(problem(text, Cause.LAUNCH))
            else:
                bridge(member.there, first.there, port, functools.partial(bridged, said))

        def bridged(said: str, way: int, reason: str) -> None:
            if self._ending or self._closed or member.lost or first.lost:
                return
            if way:
                found(f"127.0.0.1:{way}")
            else:
                self.fail(problem(f"{said}, and fleetfit cannot forward the connection: {reason}.", Cause.LAUNCH))

        member.there.reach(address, port, reached)

    @property
    def addresses(self) -> dict[str, str]:
        """Where the hosts reach each other."""
        return {
            member.name: member.host.address
            for member in self._members.values()
            if member.host is not None and not member.lost
        }

    @property
    def one_machine(self) -> bool:
        """Whether all hosts are at one address, and so share a machine; of those that come and go, none is taken for
        another's neighbour.
        """
        alone = launchers.of(self.spec.strategy).membership_changes or len(self.addresses) < 2
        return not alone and len(set(self.addresses.values())) == 1

    def neighbours(self) -> dict[str, str]:
        """Return the variables of a toolkit whose hosts are elsewhere that say where those are."""
        shared = {variables.SHARED_MACHINE: "1"} if self.one_machine else {}
        return {**shared, variables.ADDRESSES: json.dumps(self.addresses, separators=(",", ":"))}

    def fail(self, failure: Failure) -> None:
        """Something that every host needs has failed."""
        if not self._ending and not self._closed:
            self.callbacks.failed(failure)

    # --- hosts that come and go ---

    def meeting_place(self) -> tuple[str, str]:
        """This machine as a host sees it."""
        first = next(member.there for member in self._members.values() if member.host is not None)
        return first.caller_address, first.interface

    def membership(self) -> MembershipSource | None:
        """What the provider has, if it has one."""
        make = getattr(self._provider, "membership", None)
        source: MembershipSource | None = make() if make is not None else None
        return source

    @property
    def locates(self) -> bool:
        """Whether the provider heeds it."""
        return hasattr(self._provider, "locate")

    def use(self, hosts: tuple[str, ...]) -> None:
        """Run on them; where each of them is will be said anew."""
        super().use(hosts)
        self._places.clear()

    def locate(self, host: str, place: str) -> None:
        """Tell the provider, if it heeds it."""
        if self.locates:
            self._places[host] = place
            self._located.add(host)
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
                self._train_apart(member)

        member.acquire(lambda: member.prepare(0, 1, start))

    def refresh_checkpoints(self, host: str, then: Then) -> None:
        """Bring the newest checkpoints to a host: it would go on from them if all that train were lost."""
        self._members[host].refresh_checkpoints(then)

    def share_checkpoints(self, then: Then) -> None:
        """Bring the newest checkpoint to every host: the first round brings it here, the second hands it out."""

        def bring(member: _Member, then: Then) -> None:
            if member.trains:
                member.refresh_checkpoints(then)
            else:
                member.bring_saved(then)  # it has just ended, and may be the one that saved last

        def round_of(then: Then) -> None:
            each([member for member in self._members.values() if not member.lost], bring, then)

        round_of(lambda: round_of(then))

    def lost(self, member: _Member, reason: str) -> None:
        """A host is gone."""
        if self._closed:
            return
        what = "the host was lost" if member.host is not None else "no machine was found for this host"
        failure = Failure(cause=Cause.HOST_LOST, message=f"{what}: {reason}.", host=member.name)
        elastic = launchers.of(self.spec.strategy).membership_changes
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
                other.platform.host_ended(member.name)
            self._bringing = True

            def brought() -> None:
                self._bringing = False
                self.callbacks.host_ended(end)

            # Whether the attempt got anywhere, and so what follows it, is judged by what it has saved.
            each(list(self._members.values()), lambda one, then: one.bring_saved(then), brought)
            return
        member.platform.host_ended(member.name)
        if launchers.of(self.spec.strategy).membership_changes and not member.platform.shared:
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
        self._start_no_more()
        self._signal(signal.SIGTERM)

    def end_now(self) -> None:
        """SIGINT to every toolkit: it ends everything at once. What is left after half a second is killed."""
        self._ending = True
        self._start_no_more()
        self._signal(signal.SIGINT)
        members = list(self._members.values())
        for member in members:
            member.platform.end_agents()

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
            self._packer().collect(
                lambda failure: self.callbacks.outputs_collected(failure or next(iter(failures), None))
            )

        each([member for member in self._members.values() if not member.platform.shared], finish, pack)

    def _packer(self) -> LocalPlatform:
        """What packs outputs: on this machine, wherever the hosts are."""
        from estimators.backends.hosts.here import LocalHost, LocalPlatform

        if self._here is None:
            packer = LocalPlatform(self, config.PROCESSES)
            host = self.spec.hosts[0]
            packer.hosts[host] = LocalHost(Runner(self.loop, os.environ, protected=self.protected), self, host)
            return packer
        return self._here

    def cleanup(self) -> None:
        """Let the hosts go, at which everything of the job ends there."""
        self._closed = True
        for member in self._members.values():
            member.release()
        self._provider.close()
        if self._here is not None:
            self._here.cleanup()


class _Member:
    """One host of the job, as the cluster sees it.

    Attributes:
        name: Its name.
        platform: What serves it.
        host: The host, when it is there.
        joins: Whether it came to a job that ran.
        lost: Whether it is gone.
        noticed: Whether it will be taken away.
        preparing: Whether it is being prepared.
        toolkit: Its training process, when that was started.
    """

    def __init__(self, cluster: HostCluster, name: str, *, joins: bool = False) -> None:
        self._cluster = cluster
        self.name = name
        self.platform = cluster.platform()
        self.host: Host | None = None
        self.joins = joins
        self.lost = False
        self.noticed = False
        self.preparing = False
        self.toolkit: HostProcess | None = None
        self._finished = False
        self._finishing: list[Done] | None = None
        self._refreshing: list[Then] = []

    @property
    def trains(self) -> bool:
        """Whether the end of its training process will still be told."""
        return self._cluster.trains(self)

    @property
    def there(self) -> Host:
        """The host, which is there."""
        assert self.host is not None
        return self.host

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
        self.platform.lost()
        self._cluster.lost(self, reason)
        self._refreshed()

    def _has_notice(self, seconds: float) -> None:
        if not self.lost and not self.noticed:
            self.noticed = True
            self._cluster.noticed(self, seconds)

    def prepare(self, number: int, hosts: int, then: Then) -> None:
        """Bring everything that the toolkit needs; it is the ``number``-th of so many."""
        self._finished = False
        self.toolkit = None
        self.platform.prepare(self.there, number, hosts, then, joins=self.joins)

    # --- training ---

    def train(self, control_address: str, *, listens: bool, neighbours: Mapping[str, str] | None = None) -> None:
        """Start the toolkit.

        Args:
            control_address: Where algo-1's listens.
            listens: Whether it is that one.
            neighbours: What :meth:`HostCluster.neighbours` says, where it is known.
        """
        cluster, host, platform = self._cluster, self.there, self.platform
        spec, options = cluster.spec, cluster.options
        platform.start_syncs()
        tree = platform.tree(host)
        env = {
            **rebased(config.host_config(spec, self.name, platform.facts(host)).environment, tree),
            variables.BASE_DIR: str(tree.base),
            variables.JOB_NAME: spec.name,
            variables.ATTEMPT: str(cluster.attempt),
            variables.CONTROL_ADDRESS: control_address,
            variables.JOB_TOKEN: cluster.token,
            variables.STOP_GRACE: f"{options.longest_grace:g}",
            variables.START_TIMEOUT: f"{options.start_timeout:g}",
            variables.UMASK: f"{cluster.umask:o}",
            variables.JOB_MARK: spec.name,
            **config.failure_environment(spec, options, cluster.attempt),
        }
        keep_s, whose = kept.for_whom(spec, cluster.record.home)
        if keep_s:
            env |= {variables.KEEP_ALIVE: f"{keep_s}", variables.KEPT_FOR: whose}
        if platform.shared:
            env[variables.SHARED_MACHINE] = "1"
        else:
            env |= cluster.neighbours() if neighbours is None else neighbours
        self.preparing = False
        cluster.training(self)
        cluster.callbacks.output(self.name, b"")  # from here on it has to show that it is alive
        self.toolkit = host.run(
            [host.facts.python, "-I", f"{host.facts.package}/__main__.py", "train"],
            env,
            lambda data: cluster.callbacks.output(self.name, data),
            self._ended,
            lifeline=variables.LIFELINE_FD,
            listener=variables.CONTROL_FD if listens else None,
            session=launchers.of(spec.strategy).own_sessions,
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
        self._cluster.trained(self)
        self.joins = False

    # --- beside it ---

    def bring_saved(self, then: Then) -> None:
        """Have all that was saved brought."""
        if self.lost:
            then()
        else:
            self.platform.bring_saved(lambda failure: then())

    def save_checkpoints(self, then: Then) -> None:
        """Have all that was saved brought, before another attempt begins with it; nothing of the host's trains."""
        if self.lost:
            then()
        else:
            self.platform.end_attempt(then, self.name)

    def refresh_checkpoints(self, then: Then) -> None:
        """Bring what the job has saved since the host was prepared; nothing of it may train meanwhile."""
        if self.platform.shared:
            then()
            return
        self._refreshing.append(then)
        if len(self._refreshing) > 1:
            return  # it is at it

        def over() -> None:
            if not self.lost and self.trains:
                self.platform.start_syncs()
            self._refreshed()

        # What brings its own checkpoints ends first: it would take those that come for the host's.
        # One that is about to leave needs nothing any more.
        self.save_checkpoints(lambda: self.platform.restore(over) if self.trains and not self.lost else over())

    def _refreshed(self) -> None:
        """Let those go on that wait for the host's checkpoints: it has them, or it is gone."""
        waiting, self._refreshing = self._refreshing, []
        for then in waiting:
            then()

    def abort(self) -> None:
        """Kill what is left of it, but for what brings what was saved."""
        if self.host is not None and not self.lost and self.trains:
            self.host.abort(self.platform.syncing)

    # --- after it ---

    def finish(self, done: Done) -> None:
        """Bring what it has saved and its outputs."""
        if self._finishing is not None:  # it is at it
            self._finishing.append(done)
            return
        if self.host is None or self.lost or self._finished:
            done(None)
            return
        self._finished = True
        self._finishing = [done]
        self.platform.collect(self._finish_is_over)

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
            self._refreshed()
