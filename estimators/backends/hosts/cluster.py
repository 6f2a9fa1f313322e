"""A job's hosts, wherever they come from: everything that a backend does, over what a provider offers.

Where hosts have their files to themselves, what they need is pushed to them and what they save comes back
(:mod:`.apart`); hosts of this machine have the caller's (:mod:`.here`).
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from container import launchers
from container.contract import variables
from container.contract.environment import Machine
from container.contract.failures import Cause, Failure
from container.system import processes
from container.system.asyncio_loop import AsyncioLoop, gather
from container.system.running import ProcessEnd, Runner
from estimators.backends import config, local
from estimators.backends.base import Backend, Finding, Leftover
from estimators.backends.events import (
    AttemptFailed,
    BackendEvents,
    HostEnd,
    HostNoticed,
    OutputsCollected,
    ProviderEvent,
    StatusTold,
    WaitTold,
)
from estimators.backends.hosts import kept
from estimators.backends.hosts.member import ClusterMember, MemberPhase
from estimators.backends.hosts.platform import Platform, PreparationFailed, problem
from estimators.backends.hosts.provider import (
    Host,
    HostError,
    HostLost,
    HostProcess,
    HostProvider,
    HostUnavailable,
    ProvidedJob,
)
from estimators.backends.placement import ClusterPlacement
from estimators.job.errors import UnsupportedError
from estimators.job.request import JobOptions, TrainingJobSpec
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
    """Runs a job on hosts of a provider; see :class:`estimators.backends.base.Backend`.

    An attempt is one coroutine (:meth:`_run_attempt`), and so is what is done with each host: getting it ready
    (:meth:`_prepare`), its training (:meth:`_train`), its loss (:meth:`_watch`). A stop that overtakes a start cancels
    it.
    """

    provider_type: ClassVar[type[HostProvider]]

    def __init__(
        self, loop: AsyncioLoop, record: JobRecord, spec: TrainingJobSpec, options: JobOptions, events: BackendEvents
    ) -> None:
        super().__init__(loop, record, spec, options, events)
        if not self.provider_type.capabilities.shared_machine:
            _allow_connections(spec.instance_count)
        self._provider = self.provide(
            ProvidedJob(
                loop=loop,
                spec=spec,
                options=options,
                found=record.read_json(record.found_file) or {},
                protected=self.protected,
                events=self,
            )
        )
        self._here: LocalPlatform | None = None
        self._members: dict[str, ClusterMember] = {}
        self._untold: set[ClusterMember] = (
            set()
        )  # hosts whose end is still to be told: of many hosts nobody counts them anew
        self._token = ""
        self._attempt = 0
        self._ending = False
        self._begun = False  # whether toolkits have been started in this attempt
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starts: dict[str, asyncio.Task[None]] = {}  # host, or "" for the attempt -> what starts it
        self._kills: list[asyncio.Task[None]] = []
        self._lacking: set[str] = set()  # the hosts that are not ready for the attempt
        self._one_is_ready = asyncio.Event()
        self._replaced = 0  # how many were taken away before it began
        self._places: dict[str, str] = {}  # host -> where it is said to be in this attempt
        self._located: set[str] = set()  # the hosts of which that was ever said

    @classmethod
    def check(cls, spec: TrainingJobSpec, options: JobOptions) -> None:
        """Refuse what the provider refuses, and channels that nobody can feed."""
        for channel in spec.inputs:
            if (refusal := local.channel_refusal(spec, channel)) is not None:
                raise UnsupportedError(f"channel {channel.name!r} on instance_type {cls.name!r}: {refusal}")
        for refusal in cls.provider_type.validate(spec, options):
            raise UnsupportedError(f"instance_type {cls.name!r}: {refusal}")

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: JobOptions, record: Path) -> ClusterPlacement:
        """See :meth:`HostProvider.describe`."""
        place = cls.provider_type.describe(spec, options)
        toolkit = (place.python, "-I", f"{place.package}/__main__.py", "train")
        return ClusterPlacement(
            machine=Machine(
                python=place.python,
                cpus=place.cpus,
                gpus=place.gpus,
                mpirun=place.mpirun,
                container_package=place.package,
            ),
            facts=config.BackendFacts(network_interface=place.interface, instance_type=spec.instance_type),
            base_dir=place.base_dir,
            entry_points={host: (*place.connect.get(host, ()), *toolkit) for host in spec.hosts},
            warnings=place.warnings,
            notes=place.notes,
        )

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: JobOptions) -> dict[str, Any]:
        """See :meth:`HostProvider.portable`."""
        return cls.provider_type.portable(spec, options)

    @classmethod
    def patient(cls, options: JobOptions) -> dict[str, Any]:
        """See :meth:`HostProvider.patient`."""
        return cls.provider_type.patient(options)

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """See :meth:`HostProvider.found`."""
        return cls.provider_type.found(spec)

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """See :meth:`HostProvider.leftovers`."""
        return cls.provider_type.leftovers(region)

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        """See :meth:`HostProvider.diagnose`."""
        return cls.provider_type.diagnose()

    def provide(self, job: ProvidedJob) -> HostProvider:
        """Make the provider."""
        return self.provider_type(job)

    def platform(self) -> Platform:
        """Return what serves a host: hosts of this machine are served together."""
        if not self.provider_type.capabilities.shared_machine:
            from estimators.backends.hosts.apart import ApartPlatform

            return ApartPlatform(self)
        if self._here is None:
            self._here = self.platform_here()
        return self._here

    def platform_here(self) -> LocalPlatform:
        """Make what serves the hosts of this machine."""
        from estimators.backends.hosts.here import LocalPlatform

        return LocalPlatform(self, config.BackendFacts(instance_type=self.options.asked_instance_type))

    @property
    def running(self) -> bool:
        """Whether a toolkit runs, or its end is still to be told."""
        return bool(self._untold)

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

    @property
    def _elastic(self) -> bool:
        """Whether hosts come and go, so that none waits for another."""
        return launchers.of(self.spec.strategy).membership_changes

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine until it ends, or the job does."""
        task = self.loop.start(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- starting ---

    def start(self, attempt: int) -> None:
        """Get the hosts that are lacking, bring everything to all of them, start the toolkits."""
        self._attempt = attempt
        self._ending = self._begun = False
        self._replaced = 0
        self._token = os.urandom(32).hex()
        for kill in self._kills:
            kill.cancel()  # it was for what an earlier attempt left
        self._kills.clear()
        self._cancel_starts()
        self._starts[""] = self._run(self._run_attempt())

    async def _run_attempt(self) -> None:
        """Start all hosts: of an elastic job each when it is ready, of others when all are."""
        there = [self._members[host] for host in self.spec.hosts if host in self._members]
        await gather(*(member.end_attempt() for member in there))
        self._lacking = set(self.spec.hosts)
        self._get_ready(self.spec.hosts)
        if self._elastic:
            return
        while self._lacking:
            self._one_is_ready.clear()
            await self._one_is_ready.wait()
        members = [self._members[host] for host in self.spec.hosts]
        self._say_training()
        try:
            await self._start_toolkits(members)
        except PreparationFailed as error:
            self.fail(error.failure)
        except HostLost:
            pass  # it was told

    def _get_ready(self, hosts: Sequence[str]) -> None:
        """Get these hosts where they are lacking, and bring everything to them."""
        for host in hosts:
            member = self._members.get(host)
            if member is not None and (member.lost or host in self._located or member.noticed):
                # It is gone, or it is said anew where it is, or it will be taken.
                member.release()
                if (place := self._places.get(host)) is not None:
                    self.locate(host, place)  # that was said before the host was let go
            if member is None or member.lost:
                self._members[host] = ClusterMember(self, host)
        members = [self._members[host] for host in hosts]
        together = [members] if self.provider_type.capabilities.shared_machine else [[one] for one in members]
        for group in together:
            self._start(group)

    def _start(self, members: Sequence[ClusterMember], *, joins: bool = False) -> None:
        """Begin to prepare hosts that one platform serves."""
        for member in members:
            member.phase = MemberPhase.JOINING if joins else MemberPhase.PREPARING
        self._starts[members[0].name] = self._run(self._prepare(members, joins=joins))

    async def _prepare(self, members: Sequence[ClusterMember], *, joins: bool) -> None:
        """Get hosts, and bring everything to them; then those of an elastic job train."""
        first, everyone = members[0], self.spec.hosts
        try:
            await gather(*(self._acquire(member) for member in members))
            await first.platform.prepare(
                [member.there for member in members],
                number=0 if joins else everyone.index(first.name),
                count=1 if joins else len(everyone),
                joins=joins,
            )
            for member in members:
                if self._elastic:
                    address = f"{member.there.address}:0"
                    # The first that runs may be one that was added.
                    if not self.running:
                        self._say_training()
                    self._start_toolkit(member, address, listens=False)
                else:
                    self._lacking.discard(member.name)
                    self._one_is_ready.set()
        except HostLost:
            pass  # it is told as its loss
        except PreparationFailed as error:
            self.fail(error.failure)
        except HostError as error:
            self.fail(problem(f"{first.name} could not be prepared: {error}"))

    async def _acquire(self, member: ClusterMember) -> None:
        """Get a host, unless it is there."""
        member.finishing = None
        if member.host is not None:
            return
        try:
            host = await self._provider.acquire(member.name)
        except HostUnavailable as error:
            self._run(self._lose(member, str(error)))
            raise HostLost(str(error)) from None
        if member.lost:  # it is not needed any more
            host.close()
            self._provider.release(host)
            raise HostLost("the job does not need the host any more")
        member.host = host
        member.watch = self._run(self._watch(member, host))

    async def _watch(self, member: ClusterMember, host: Host) -> None:
        noticing = self._run(self._await_notice(member, host))
        try:
            reason = await host.until_lost()
        finally:
            noticing.cancel()
        await self._lose(member, reason)

    async def _await_notice(self, member: ClusterMember, host: Host) -> None:
        """Take note that a host will be taken away: where nothing of the attempt runs yet, another one replaces it."""
        seconds = await host.until_noticed()
        if member.lost:
            return
        member.noticed = True
        if self._begun or self._elastic or self._replaced >= _REPLACEMENTS:
            self.events.put_nowait(HostNoticed(member.name, seconds))
        elif member.preparing and not self._ending:
            self._replaced += 1
            self._tell(f"{member.name} will be taken away in {seconds:.0f} s, so another host takes its place.")
            self._lacking.add(member.name)
            self._cancel_start(member.name)
            self._get_ready([member.name])

    def _say_training(self) -> None:
        self._begun = True
        self.events.put_nowait(StatusTold("Training"))

    def put_nowait(self, event: ProviderEvent) -> None:
        """Take what the provider tells."""
        if isinstance(event, WaitTold):
            self._tell(event.text)
        else:
            self.events.put_nowait(event)

    def _tell(self, text: str) -> None:
        """Show what is waited for while nothing trains: an elastic job that has lost all hosts stays in training."""
        if not self.running and not self._ending:
            self.events.put_nowait(StatusTold("Training" if self._begun else "Pending", text))

    async def _start_toolkits(self, members: Sequence[ClusterMember]) -> None:
        """Start the toolkits of all hosts, which meet at the first."""
        first = members[0]
        if len(members) == 1:
            self._start_toolkit(first, f"{first.there.address}:0", listens=False)
            return
        port = await first.there.listen()
        if not port:
            raise PreparationFailed(problem(f"{first.name} cannot listen at {first.there.address}.", Cause.LAUNCH))
        ways = dict.fromkeys((member.name for member in members), f"{first.there.address}:{port}")
        if not first.platform.shared:
            others = await gather(*(self._find_way(member, first, port) for member in members[1:]))
            ways.update(zip((member.name for member in members[1:]), others, strict=True))
        neighbours = self.neighbours()  # the same for all
        for member in members:
            _ = member.there  # one that is gone has failed the attempt
        for member in members:
            member.phase = MemberPhase.TRAINING
            self._untold.add(member)
        unstarted = deque(members)
        try:
            # Starting hundreds of processes on a few cores takes minutes, in which the supervisor has to answer.
            until = time.monotonic() + _STARTING_S
            while unstarted:
                if time.monotonic() > until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + _STARTING_S
                member = unstarted.popleft()
                if member.trains:  # it was not lost meanwhile
                    self._start_toolkit(member, ways[member.name], listens=member is first, neighbours=neighbours)
        finally:  # the job is being ended
            for member in unstarted:
                if member.trains:
                    self._run(self._tell_end(member, HostEnd(host=member.name)))

    async def _find_way(self, member: ClusterMember, first: ClusterMember, port: int) -> str:
        """Find how a host connects to the one that listens: directly, or through what the provider has to both.

        A strategy whose processes connect by themselves has only the direct way; without one the job fails.
        """
        address = first.there.address
        try:
            await member.there.reach(address, port)
            return f"{address}:{port}"
        except HostLost:
            raise
        except HostError as error:
            said = f"{member.name} ({member.there.address}) does not reach {first.name} at {address}:{port} ({error})"
        if launchers.of(self.spec.strategy).connects or not self.provider_type.capabilities.bridges:
            text = (
                f"{said}, but the processes of strategy {launchers.launcher_of(self.spec.strategy)!r} need direct "
                "connections between the hosts. Open the ports between the hosts, or set the address at which the "
                "hosts reach each other."
            )
            raise PreparationFailed(problem(text, Cause.LAUNCH))
        try:
            return f"127.0.0.1:{await self._provider.bridge(member.there, first.there, port)}"
        except HostLost:
            raise
        except HostError as error:
            text = f"{said}, and fleetfit cannot forward the connection: {error}."
            raise PreparationFailed(problem(text, Cause.LAUNCH)) from None

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
        alone = self._elastic or len(self.addresses) < 2
        return not alone and len(set(self.addresses.values())) == 1

    def neighbours(self) -> dict[str, str]:
        """Return the variables of a toolkit whose hosts are elsewhere that say where those are."""
        shared = {variables.SHARED_MACHINE: "1"} if self.one_machine else {}
        return {**shared, variables.ADDRESSES: json.dumps(self.addresses, separators=(",", ":"))}

    def fail(self, failure: Failure) -> None:
        """Report that something which every host needs has failed."""
        if not self._ending:
            self.events.put_nowait(AttemptFailed(failure))

    # --- training ---

    def _start_toolkit(
        self, member: ClusterMember, control_address: str, *, listens: bool, neighbours: Mapping[str, str] | None = None
    ) -> None:
        """Start a host's training process.

        Args:
            member: The host.
            control_address: The address at which algo-1's toolkit listens.
            listens: Whether it is that one.
            neighbours: The result of :meth:`neighbours`, where it is known.
        """
        spec, host, platform = self.spec, member.there, member.platform
        platform.start_syncs()
        env = {
            **platform.environment(host),
            **config.toolkit_environment(spec, self.options, self._attempt),
            variables.CONTROL_ADDRESS: control_address,
            variables.JOB_TOKEN: self._token,
            variables.UMASK: f"{self.umask:o}",
        }
        keep_s, whose = kept.for_whom(spec, self.record.home)
        if keep_s:
            env |= {variables.KEEP_ALIVE: f"{keep_s}", variables.KEPT_FOR: whose}
        if not platform.shared:
            env |= self.neighbours() if neighbours is None else neighbours
        member.phase = MemberPhase.TRAINING
        self._untold.add(member)
        self.hand_on(member.name, b"")  # from here on it has to show that it is alive
        member.toolkit = host.run(
            [host.facts.python, "-I", f"{host.facts.package}/__main__.py", "train"],
            env,
            functools.partial(self.hand_on, member.name),
            lifeline=variables.LIFELINE_FD,
            listener=variables.CONTROL_FD if listens else None,
            session=launchers.of(spec.strategy).own_sessions,
            runtime=variables.RUNTIME_DIR,
        )
        self._run(self._train(member, member.toolkit))

    async def _train(self, member: ClusterMember, toolkit: HostProcess) -> None:
        """Wait for the end of a host's training process, and tell it."""
        try:
            end = await toolkit.wait()
        except HostLost:
            return  # it is told as the host's loss
        if member.trains:
            await self._tell_end(member, self._host_end(member.name, end))

    def _host_end(self, host: str, end: ProcessEnd) -> HostEnd:
        failure = None if self._ending else end.failure
        if end.error is not None:
            failure = problem(f"{host} could not be started: {end.error}", Cause.LAUNCH)
        elif end.signal is not None and failure is None and not self._ending:
            failure = Failure(
                cause=Cause.PROCESS,
                message=f"the host's training process was killed by {signal.Signals(end.signal).name}.",
                host=host,
                process="toolkit",
                signal=end.signal,
            )
        code = 255 if end.error is not None else end.exit_code
        return HostEnd(host=host, exit_code=code, signal=end.signal, failure=failure)

    async def _lose(self, member: ClusterMember, reason: str) -> None:
        """Decide what follows from a host's loss: it ends while others go on, or the attempt fails."""
        if member.lost:
            return
        before, member.phase = member.phase, MemberPhase.LOST
        member.platform.close()
        what = "the host was lost" if member.host is not None else "no machine was found for this host"
        failure = Failure(cause=Cause.HOST_LOST, message=f"{what}: {reason}.", host=member.name)
        others = any(other.trains or other.preparing for other in self._members.values())
        if before in (MemberPhase.TRAINING, MemberPhase.JOINING) or (
            self._elastic and before is MemberPhase.PREPARING and others
        ):
            await self._tell_end(member, HostEnd(host=member.name, failure=None if self._ending else failure))
        elif before is MemberPhase.PREPARING:
            self.fail(failure)

    async def _tell_end(self, member: ClusterMember, end: HostEnd) -> None:
        """Tell the end of a host; of the last one, when all that was saved is here.

        Whether the attempt got anywhere, and so what follows it, is judged by what it has saved.
        """
        if not member.lost:
            member.phase = MemberPhase.IDLE
        if self._untold - {member}:
            member.platform.host_ended(member.name)
            if self._elastic and not member.platform.shared:
                self._run(self._let_go(member))
        else:
            self._untold.add(member)  # one that never trained, too: a stop meanwhile waits for nothing
            for other in self._members.values():
                other.platform.end_feeders()
            await gather(*(other.bring_saved() for other in self._members.values()))
        self._untold.discard(member)
        self.events.put_nowait(end)

    async def _let_go(self, member: ClusterMember) -> None:
        """Release a host of an elastic job that has ended while others train: another host may need what it has."""
        attempt = self._attempt
        await member.finish()
        if attempt == self._attempt:  # the next one has it again
            member.release()

    # --- hosts that come and go ---

    def meeting_place(self) -> tuple[str, str]:
        """Return this machine's address as a host sees it, and that host's interface."""
        first = next(one.host for one in self._members.values() if one.host is not None and not one.lost)
        return first.caller_address, first.interface

    def membership(self) -> MembershipSource | None:
        """See :meth:`HostProvider.membership`."""
        return self._provider.membership()

    @property
    def locates(self) -> bool:
        """Whether :meth:`locate` decides where a host is."""
        return self.provider_type.capabilities.locates

    def use(self, hosts: tuple[str, ...]) -> None:
        """Run on these hosts; where each of them is will be said anew."""
        super().use(hosts)
        self._places.clear()

    def locate(self, host: str, place: str) -> None:
        """See :meth:`HostProvider.locate`."""
        if self.locates:
            self._places[host] = place
            self._located.add(host)
            self._provider.locate(host, place)

    def withdraw(self, host: str) -> None:
        """End a host for which there is no machine yet."""
        member = self._members.get(host)
        if member is not None and member.host is None and member.preparing:
            member.phase = MemberPhase.LOST
            self._cancel_start(host)
            self.events.put_nowait(HostEnd(host=host))

    def add_host(self, host: str) -> None:
        """Get a host, bring the inputs, start its toolkit."""
        member = self._members[host] = ClusterMember(self, host)
        self._start([member], joins=True)

    async def refresh_checkpoints(self, host: str) -> None:
        """Bring the newest checkpoints to a host: it would go on from them if all that train were lost."""
        await self._members[host].refresh_checkpoints()

    async def share_checkpoints(self) -> None:
        """Bring the newest checkpoint to every host: the first round brings it here, the second hands it out."""
        for _ in range(2):
            # Hosts of this machine see each other's as they are saved.
            there = [member for member in self._members.values() if not (member.lost or member.platform.shared)]
            # One that has just ended may be the one that saved last.
            await gather(*(member.refresh_checkpoints() if member.trains else member.bring_saved() for member in there))

    # --- ending ---

    def stop(self) -> None:
        """Send SIGTERM to every toolkit; it passes it on and waits for the scripts."""
        if self.running:
            self._cancel_start("")
        for member in list(self._members.values()):
            if self._elastic and member.preparing:
                # It would be waited for, and nobody would tell it to end.
                self._cancel_start(member.name)
                self._run(self._tell_end(member, HostEnd(host=member.name)))
        self._signal(signal.SIGTERM)

    def end_now(self) -> None:
        """Send SIGINT to every toolkit: it ends everything at once. What is left after half a second is killed."""
        self._ending = True
        self._cancel_starts()
        self._signal(signal.SIGINT)
        for member in self._members.values():
            member.platform.end_agents()
        self._kills.append(self._run(self._kill_after(_KILL_AFTER, list(self._members.values()))))

    def _cancel_starts(self) -> None:
        for host in list(self._starts):
            self._cancel_start(host)

    def _cancel_start(self, host: str) -> None:
        if (starting := self._starts.pop(host, None)) is not None:
            starting.cancel()
        if (member := self._members.get(host)) is not None and member.preparing:
            member.phase = MemberPhase.IDLE

    async def _kill_after(self, seconds: float, members: Sequence[ClusterMember]) -> None:
        await asyncio.sleep(seconds)
        for member in members:
            member.abort()

    def _signal(self, number: int) -> None:
        for member in self._members.values():
            if member.trains and member.toolkit is not None:
                member.toolkit.signal(number)

    def say(self, host: str, words: bytes) -> None:
        """Write to the host's lifeline."""
        if (member := self._members.get(host)) is not None and member.trains and member.toolkit is not None:
            member.toolkit.write(words)

    def kill_host(self, host: str) -> None:
        """Send SIGKILL to the host's toolkit; the agent there ends what it leaves."""
        if (member := self._members.get(host)) is not None and member.trains and member.toolkit is not None:
            member.toolkit.signal(signal.SIGKILL)

    def collect_outputs(self) -> None:
        """Bring the rest of the checkpoints, models and outputs, then pack them."""
        self._run(self._collect())

    async def _collect(self) -> None:
        apart = [member for member in self._members.values() if not member.platform.shared]
        failures = [failure for failure in await gather(*(member.finish() for member in apart)) if failure is not None]
        unpacked = await self._packer().collect()
        self.events.put_nowait(OutputsCollected(unpacked or next(iter(failures), None)))

    def _packer(self) -> LocalPlatform:
        """Return what packs outputs: on this machine, wherever the hosts are."""
        from estimators.backends.hosts.here import LocalHost, LocalPlatform

        if self._here is None:
            packer = LocalPlatform(self, config.PROCESSES)
            host = self.spec.hosts[0]
            packer.hosts[host] = LocalHost(Runner(self.loop, os.environ, protected=self.protected), self, host)
            return packer
        return self._here

    def cleanup(self) -> None:
        """Let the hosts go, at which everything of the job ends there."""
        self._ending = True
        for task in list(self._tasks):
            task.cancel()
        for member in self._members.values():
            member.platform.close()
            member.release()
        self._provider.close()
        if self._here is not None:
            self._here.cleanup()
