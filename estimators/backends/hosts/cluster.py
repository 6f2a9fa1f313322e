"""Run a job on the hosts of any provider.

If a host shares no files with the caller's machine, the job's files are copied to the host, and the files that the host
saves are copied back (:mod:`.apart`). Hosts on this machine use the caller's files (:mod:`.here`).
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
from typing import TYPE_CHECKING, Any

from container import launchers
from container.contract import variables
from container.contract.failures import Cause, Failure
from container.system import processes
from container.system.asyncio_loop import AsyncioLoop, gather
from container.system.running import ProcessEnd, Runner
from estimators.backends import config
from estimators.backends.base import Backend
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
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records.record import JobRecord

if TYPE_CHECKING:
    from estimators.backends.hosts.here import LocalPlatform
    from estimators.backends.hosts.membership import MembershipSource

#: Number of file descriptors that the supervisor needs for itself, and the maximum for each host on another machine.
_OWN_DESCRIPTORS, _DESCRIPTORS_OF_A_HOST = 256, 8
#: Maximum number of hosts that are replaced while an attempt is being prepared. A host is replaced if the provider has
#: announced that it will take the host away.
_REPLACEMENTS = 20
#: Seconds of starting toolkits after which other tasks of the loop get a turn.
_STARTING_S = 0.25
#: Seconds between SIGINT and SIGKILL when hosts are ended without a grace period (:meth:`HostCluster.end_now`).
_KILL_AFTER = 0.5


class HostCluster(Backend):
    """A backend that runs a job on the hosts of a provider.

    See :class:`estimators.backends.base.Backend` for the interface.

    On each host, a process of fleetfit, the toolkit, starts the user's script. One coroutine starts an attempt
    (:meth:`_run_attempt`). Each host has a coroutine for its preparation (:meth:`_prepare`), one for its training
    (:meth:`_train`) and one for the detection of its loss (:meth:`_watch`). A stop cancels a start that is in progress.

    If a host is lost, the coroutines that use the host get :class:`HostLost`, and end without a report. The loss is
    reported once, by :meth:`_lose`, which the host's :meth:`_watch` calls.

    Args:
        provider: The class of the provider of the job's hosts.

    The other arguments are those of the base class.
    """

    def __init__(
        self,
        provider: type[HostProvider],
        loop: AsyncioLoop,
        record: JobRecord,
        spec: TrainingJobSpec,
        options: JobOptions,
        events: BackendEvents,
    ) -> None:
        super().__init__(loop, record, spec, options, events)
        self.name = provider.name
        self.other_users = provider.capabilities.containers
        self._capabilities = provider.capabilities
        if not self._capabilities.shared_machine:
            # Each host needs one or two descriptors, and a few more while files are copied to the host. The usual limit
            # is 1,024. Ranks do not inherit the limit, because the hosts' agents start the ranks.
            processes.allow_open_files(_OWN_DESCRIPTORS + _DESCRIPTORS_OF_A_HOST * spec.instance_count)
        self.provider = provider(
            ProvidedJob(
                loop=loop,
                spec=spec,
                options=options,
                found=record.read_json(record.found_file) or {},
                protected=self.protected,
                backend=self,
                events=self,
            )
        )
        self._here: LocalPlatform | None = None
        self._members: dict[str, ClusterMember] = {}
        self._untold: set[ClusterMember] = set()  # hosts for which a HostEnd still has to be reported
        self._token = ""
        self._begun = False  # whether toolkits have been started in this attempt
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starts: dict[str, asyncio.Task[None]] = {}  # host, or "" for the attempt -> the task that starts it
        self._kills: list[asyncio.Task[None]] = []
        self._lacking: set[str] = set()  # the hosts that are not ready for the attempt
        self._one_is_ready = asyncio.Event()
        self._replaced = 0  # number of hosts replaced before the attempt began
        self._places: dict[str, str] = {}  # host -> the machine or node on which it runs in this attempt
        self._located: set[str] = set()  # the hosts to which a machine or node was ever assigned

    def platform(self) -> Platform:
        """Return the platform for a new host, the object that provides the host's inputs and saves its files.

        Hosts on this machine share one platform. Any other host gets a platform of its own.
        """
        if not self._capabilities.shared_machine:
            from estimators.backends.hosts.apart import ApartPlatform

            return ApartPlatform(self)
        if self._here is None:
            from estimators.backends.hosts.here import LocalPlatform

            facts = config.BackendFacts(instance_type=self.options.asked_instance_type)
            self._here = self.provider.shared_platform() or LocalPlatform(self, facts)
        return self._here

    @property
    def running(self) -> bool:
        """Return whether a HostEnd still has to be reported for a host.

        This holds from the start of a host's toolkit until the HostEnd is reported. Before the HostEnd of the last host
        is reported, saved files are copied, so the result may be True although no toolkit runs any more.
        """
        return bool(self._untold)

    @property
    def _elastic(self) -> bool:
        """Return whether hosts may join and leave the job. If True, no host waits for the other hosts."""
        return launchers.of(self.spec.strategy).membership_changes

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task. :meth:`cleanup` cancels the task."""
        task = self.loop.start(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- starting ---

    def start(self, attempt: int) -> None:
        """Acquire the missing hosts, copy the files to all hosts, and start the toolkits."""
        self.attempt = attempt
        self.is_ending = self._begun = False
        self._replaced = 0
        self._token = os.urandom(32).hex()
        for kill in self._kills:
            kill.cancel()  # an earlier attempt has started this timer, which would kill the new attempt's processes
        self._kills.clear()
        self._cancel_starts()
        self._starts[""] = self._run(self._run_attempt())

    async def _run_attempt(self) -> None:
        """Prepare all hosts, then start the toolkits of all hosts together.

        In an elastic job, each toolkit starts as soon as its host is prepared.
        """
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
            pass  # another task, the lost host's _watch, calls _lose, which reports the loss

    def _get_ready(self, hosts: Sequence[str]) -> None:
        """Start the preparation of the given hosts. Hosts that cannot be used again are released first."""
        for host in hosts:
            member = self._members.get(host)
            if member is not None and (member.lost or host in self._located or member.noticed):
                # The host cannot be used any more, may have to move to a different machine in this attempt, or will be
                # taken away.
                member.release()
                if (place := self._places.get(host)) is not None:
                    self.locate(host, place)  # set it again, because the release has removed it
            if member is None or member.lost:
                self._members[host] = ClusterMember(self, host)
        members = [self._members[host] for host in hosts]
        together = [members] if self._capabilities.shared_machine else [[one] for one in members]
        for group in together:
            self._start(group)

    def _start(self, members: Sequence[ClusterMember], *, joins: bool = False) -> None:
        """Start the preparation of hosts that share one platform.

        Args:
            members: The hosts.
            joins: Whether the hosts join a running job.
        """
        for member in members:
            member.phase = MemberPhase.JOINING if joins else MemberPhase.PREPARING
        self._starts[members[0].name] = self._run(self._prepare(members, joins=joins))

    async def _prepare(self, members: Sequence[ClusterMember], *, joins: bool) -> None:
        """Acquire hosts and copy the job's files to the hosts. In an elastic job, also start the hosts' toolkits.

        Args:
            members: The hosts, which share one platform.
            joins: Whether the hosts join a running job.
        """
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
                    # If no other host runs, the training begins with this host, even if the host was added later.
                    if not self.running:
                        self._say_training()
                    self._start_toolkit(member, address, listens=False)
                else:
                    self._lacking.discard(member.name)
                    self._one_is_ready.set()
        except HostLost:
            # Another task reports why: if the host was lost, its _watch calls _lose; if the provider had no host,
            # _acquire has started _lose; if the request was withdrawn, withdraw() has reported the HostEnd.
            pass
        except PreparationFailed as error:
            self.fail(error.failure)
        except HostError as error:
            self.fail(problem(f"{first.name} could not be prepared: {error}"))

    async def _acquire(self, member: ClusterMember) -> None:
        """Acquire a host for a member, unless the member already has a host.

        Raises:
            HostLost: the provider cannot supply a host, or the job has withdrawn its request meanwhile. In the first
                case, :meth:`_lose` was started to report the failure.
        """
        member.finishing = None
        if member.host is not None:
            return
        try:
            host = await self.provider.acquire(member.name)
        except HostUnavailable as error:
            self._run(self._lose(member, str(error)))
            raise HostLost(str(error)) from None
        if member.lost:  # the request for the host was withdrawn meanwhile
            host.close()
            self.provider.release(host)
            raise HostLost("the job does not need the host any more")
        member.host = host
        member.watch = self._run(self._watch(member, host))

    async def _watch(self, member: ClusterMember, host: Host) -> None:
        """Wait until a host is lost, then call :meth:`_lose`. The release of the host cancels this task."""
        noticing = self._run(self._await_notice(member, host))
        try:
            reason = await host.until_lost()
        finally:
            noticing.cancel()
        await self._lose(member, reason)

    async def _await_notice(self, member: ClusterMember, host: Host) -> None:
        """Wait for the notice that a host will be taken away. Then replace the host, or report the notice.

        The host is replaced if the attempt has not begun and the job is not elastic.
        """
        seconds = await host.until_noticed()
        if member.lost:
            return
        member.noticed = True
        if self._begun or self._elastic or self._replaced >= _REPLACEMENTS:
            self.events.put_nowait(HostNoticed(member.name, seconds))
        elif member.preparing and not self.is_ending:
            self._replaced += 1
            self._tell(f"{member.name} will be taken away in {seconds:.0f} s, so another host takes its place.")
            self._lacking.add(member.name)
            self._cancel_start(member.name)
            self._get_ready([member.name])

    def _say_training(self) -> None:
        self._begun = True
        self.events.put_nowait(StatusTold("Training"))

    def put_nowait(self, event: ProviderEvent) -> None:
        """Handle an event of the provider."""
        if isinstance(event, WaitTold):
            self._tell(event.text)
        else:
            self.events.put_nowait(event)

    def _tell(self, text: str) -> None:
        """Show a status text while no host trains. An elastic job that has lost all its hosts keeps the status
        Training.
        """
        if not self.running and not self.is_ending:
            self.events.put_nowait(StatusTold("Training" if self._begun else "Pending", text))

    async def _start_toolkits(self, members: Sequence[ClusterMember]) -> None:
        """Start the toolkits of all hosts. The first host's toolkit listens, and all other toolkits connect to it."""
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
        neighbours = self._neighbours()  # computed once: it is the same for all hosts
        for member in members:
            _ = member.there  # raises HostLost if the host is lost
        for member in members:
            member.phase = MemberPhase.TRAINING
            self._untold.add(member)
        unstarted = deque(members)
        try:
            # Starting hundreds of toolkits on a few cores takes minutes. The supervisor must answer requests meanwhile.
            until = time.monotonic() + _STARTING_S
            while unstarted:
                if time.monotonic() > until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + _STARTING_S
                member = unstarted.popleft()
                if member.trains:  # false if the host was lost meanwhile
                    self._start_toolkit(member, ways[member.name], listens=member is first, neighbours=neighbours)
        finally:  # if this coroutine is cancelled, the remaining hosts end without a toolkit
            for member in unstarted:
                if member.trains:
                    self._run(self._tell_end(member, HostEnd(host=member.name)))

    async def _find_way(self, member: ClusterMember, first: ClusterMember, port: int) -> str:
        """Return the address at which a host can connect to the first host.

        The result is the first host's own address if ``member`` can connect to it. Otherwise, the result is a loopback
        address that the provider forwards to the first host. Forwarding is not sufficient for strategies whose
        processes connect to each other directly.

        Args:
            member: The host that connects.
            first: The host that listens.
            port: The port at which the first host listens.

        Raises:
            PreparationFailed: the host cannot connect to the first host, or forwarding is not sufficient.
        """
        address = first.there.address
        try:
            await member.there.reach(address, port)
            return f"{address}:{port}"
        except HostLost:
            raise
        except HostError as error:
            said = f"{member.name} ({member.there.address}) does not reach {first.name} at {address}:{port} ({error})"
        if launchers.of(self.spec.strategy).connects or not self._capabilities.bridges:
            text = (
                f"{said}, but the processes of strategy {launchers.launcher_of(self.spec.strategy)!r} need direct "
                "connections between the hosts. Open the ports between the hosts, or set the address at which the "
                "hosts reach each other."
            )
            raise PreparationFailed(problem(text, Cause.LAUNCH))
        try:
            return f"127.0.0.1:{await self.provider.bridge(member.there, first.there, port)}"
        except HostLost:
            raise
        except HostError as error:
            text = f"{said}, and fleetfit cannot forward the connection: {error}."
            raise PreparationFailed(problem(text, Cause.LAUNCH)) from None

    def _neighbours(self) -> dict[str, str]:
        """Return the environment variables that tell the toolkit of a remote host the addresses of all hosts.

        If all hosts have the same address, another variable tells that they share one machine. This variable is not set
        in an elastic job, because the hosts change.
        """
        addresses = {
            member.name: member.host.address
            for member in self._members.values()
            if member.host is not None and not member.lost
        }
        one_machine = not self._elastic and len(addresses) > 1 and len(set(addresses.values())) == 1
        shared = {variables.SHARED_MACHINE: "1"} if one_machine else {}
        return {**shared, variables.ADDRESSES: json.dumps(addresses, separators=(",", ":"))}

    def fail(self, failure: Failure) -> None:
        """Report a failure that affects every host, such as a failed preparation."""
        if not self.is_ending:
            self.events.put_nowait(AttemptFailed(failure))

    # --- training ---

    def _start_toolkit(
        self, member: ClusterMember, control_address: str, *, listens: bool, neighbours: Mapping[str, str] | None = None
    ) -> None:
        """Start a host's training process.

        Args:
            member: The host.
            control_address: The address at which this host reaches the toolkit of the job's first host.
            listens: Whether this host is the first host, whose toolkit listens.
            neighbours: The result of :meth:`_neighbours`. If None, the result is computed.
        """
        spec, host, platform = self.spec, member.there, member.platform
        platform.start_syncs()
        env = {
            **platform.environment(host),
            **config.toolkit_environment(spec, self.options, self.attempt),
            variables.CONTROL_ADDRESS: control_address,
            variables.JOB_TOKEN: self._token,
            variables.UMASK: f"{self.umask:o}",
        }
        keep_s, whose = kept.for_whom(spec, self.record.home)
        if keep_s:
            env |= {variables.KEEP_ALIVE: f"{keep_s}", variables.KEPT_FOR: whose}
        if not platform.shared:
            env |= self._neighbours() if neighbours is None else neighbours
        member.phase = MemberPhase.TRAINING
        self._untold.add(member)
        self.hand_on(member.name, b"")  # the supervisor expects heartbeats of the host from now on
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
        """Wait until a host's training process has ended, and report the end of the host.

        Report nothing if the host was lost or its connection was closed before the end of the process was known.
        """
        try:
            end = await toolkit.wait()
        except HostLost:
            return  # if the host was lost, another task, its _watch, calls _lose, which reports the HostEnd
        if member.trains:
            await self._tell_end(member, self._host_end(member.name, end))

    def _host_end(self, host: str, end: ProcessEnd) -> HostEnd:
        failure = None if self.is_ending else end.failure
        if end.error is not None:
            failure = problem(f"{host} could not be started: {end.error}", Cause.LAUNCH)
        elif end.signal is not None and failure is None and not self.is_ending:
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
        """Report that a host was lost, or that the provider could not supply a host.

        If the host was training or joining the job, report its HostEnd, and let the other hosts continue. If the host
        was still being prepared, report that the attempt has failed. In an elastic job with other hosts, report the
        HostEnd instead. Report nothing if the host takes no part in the attempt, or if :attr:`ClusterMember.lost` is
        already true.

        Args:
            member: The host.
            reason: The reason, as a text for the user.
        """
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
            await self._tell_end(member, HostEnd(host=member.name, failure=None if self.is_ending else failure))
        elif before is MemberPhase.PREPARING:
            self.fail(failure)

    async def _tell_end(self, member: ClusterMember, end: HostEnd) -> None:
        """Report the HostEnd of a host. Before the last HostEnd is reported, copy all saved files to this machine.

        From the copied checkpoints, the supervisor learns whether the attempt has made progress. The supervisor needs
        to know this when it decides whether to start another attempt.
        """
        if not member.lost:
            member.phase = MemberPhase.IDLE
        if self._untold - {member}:
            member.platform.host_ended(member.name)
            if self._elastic and not member.platform.shared:
                self._run(self._let_go(member))
        else:
            self._untold.add(member)  # also a host that never trained: `running` stays true while files are copied
            for other in self._members.values():
                other.platform.end_feeders()
            await gather(*(other.bring_saved() for other in self._members.values()))
        self._untold.discard(member)
        self.events.put_nowait(end)

    async def _let_go(self, member: ClusterMember) -> None:
        """Release a host that has ended before the other hosts of an elastic job. Copy the host's results to this
        machine first.

        The host's machine is released early, because another host may need it.
        """
        attempt = self.attempt
        await member.finish()
        if attempt == self.attempt:  # otherwise the next attempt uses the host
            member.release()

    # --- hosts that join and leave ---

    def meeting_place(self) -> tuple[str, str]:
        """Return the address at which one of the hosts reaches this machine, and the network interface of that host."""
        first = next(one.host for one in self._members.values() if one.host is not None and not one.lost)
        return first.caller_address, first.interface

    def membership(self) -> MembershipSource | None:
        """Return the source that lists the machines for an elastic job. See :meth:`HostProvider.membership`."""
        return self.provider.membership()

    @property
    def locates(self) -> bool:
        """Return whether :meth:`locate` decides where a host runs."""
        return self._capabilities.locates

    def use(self, hosts: tuple[str, ...]) -> None:
        """Set the hosts of the next attempt. The hosts' machines must then be set again with :meth:`locate`."""
        super().use(hosts)
        self._places.clear()

    def locate(self, host: str, place: str) -> None:
        """Set the machine or node on which a host runs. See :meth:`HostProvider.locate`."""
        if self.locates:
            self._places[host] = place
            self._located.add(host)
            self.provider.locate(host, place)

    def withdraw(self, host: str) -> None:
        """Cancel the request for a host that is not acquired yet, and report the HostEnd of the host.

        Do nothing if the host is already acquired, or is not being prepared.
        """
        member = self._members.get(host)
        if member is not None and member.host is None and member.preparing:
            member.phase = MemberPhase.LOST
            self._cancel_start(host)
            self.events.put_nowait(HostEnd(host=host))

    def add_host(self, host: str) -> None:
        """Acquire an additional host for a running job, copy the job's inputs to the host, and start the host's
        toolkit.
        """
        member = self._members[host] = ClusterMember(self, host)
        self._start([member], joins=True)

    async def refresh_checkpoints(self, host: str) -> None:
        """Copy the newest checkpoints to a host. The host would continue from these checkpoints if all training hosts
        were lost.
        """
        await self._members[host].refresh_checkpoints()

    async def share_checkpoints(self) -> None:
        """Copy the newest checkpoint to every host.

        The checkpoint is first copied from the hosts to this machine, and then from this machine to all hosts.
        """
        for _ in range(2):
            # Hosts on this machine share the checkpoint folder.
            there = [member for member in self._members.values() if not (member.lost or member.platform.shared)]
            # A host that has just ended may have saved the newest checkpoint.
            await gather(*(member.refresh_checkpoints() if member.trains else member.bring_saved() for member in there))

    # --- ending ---

    def stop(self) -> None:
        """Send SIGTERM to every toolkit. A toolkit forwards SIGTERM to its scripts, and waits for the scripts to
        exit.

        Hosts of an elastic job that are still being prepared have no toolkit. Cancel their start, and report their
        HostEnd.
        """
        if self.running:
            self._cancel_start("")
        for member in list(self._members.values()):
            if self._elastic and member.preparing:
                # The host has no toolkit that could get the signal. Without a HostEnd, the supervisor would wait for
                # the host.
                self._cancel_start(member.name)
                self._run(self._tell_end(member, HostEnd(host=member.name)))
        self._signal(signal.SIGTERM)

    def end_now(self) -> None:
        """Send SIGINT to every toolkit, which makes the toolkit terminate its processes without a grace period. After
        0.5 s, send SIGKILL to the remaining processes of the hosts that still train.

        Also cancel all starts, and kill all agents except those that copy saved files.
        """
        self.is_ending = True
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
        """Write data to a host's lifeline, the channel from which the host's toolkit reads messages."""
        if (member := self._members.get(host)) is not None and member.trains and member.toolkit is not None:
            member.toolkit.write(words)

    def kill_host(self, host: str) -> None:
        """Send SIGKILL to a host's toolkit. The host's agent then kills the remaining processes of the toolkit."""
        if (member := self._members.get(host)) is not None and member.trains and member.toolkit is not None:
            member.toolkit.signal(signal.SIGKILL)

    def collect_outputs(self) -> None:
        """Copy the remaining checkpoints, models and outputs to this machine, then pack the models and outputs."""
        self._run(self._collect())

    async def _collect(self) -> None:
        apart = [member for member in self._members.values() if not member.platform.shared]
        failures = [failure for failure in await gather(*(member.finish() for member in apart)) if failure is not None]
        unpacked = await self._packer().collect()
        self.events.put_nowait(OutputsCollected(unpacked or next(iter(failures), None)))

    def _packer(self) -> LocalPlatform:
        """Return the platform that packs the outputs. Outputs are packed on this machine, wherever the hosts are."""
        from estimators.backends.hosts.here import LocalHost, LocalPlatform

        if self._here is None:
            packer = LocalPlatform(self, config.PROCESSES)
            host = self.spec.hosts[0]
            packer.hosts[host] = LocalHost(Runner(self.loop, os.environ, protected=self.protected), self, host)
            return packer
        return self._here

    def cleanup(self) -> None:
        """Cancel all tasks and release the hosts. Releasing a host ends all processes of the job on the host."""
        self.is_ending = True
        for task in list(self._tasks):
            task.cancel()
        for member in self._members.values():
            member.platform.close()
            member.release()
        self.provider.close()
        if self._here is not None:
            self._here.cleanup()
