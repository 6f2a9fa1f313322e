"""Start, remove and replace the hosts of an elastic job, and keep spare hosts ready to join."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING

from container.contract.failures import Cause, Failure
from estimators.backends.base import HostEnd
from estimators.supervisor.elastic import deciding
from estimators.supervisor.elastic.exclusion import Exclusion
from estimators.supervisor.elastic.members import ElasticHost, HostState, WorkerState
from estimators.supervisor.elastic.workers import WorkerControl
from estimators.supervisor.machine import TERMINATED

if TYPE_CHECKING:
    from estimators.supervisor.elastic.controller import ElasticController

#: How long a worker of a leaving host may take to exit by itself, in seconds. After this time, the worker is
#: terminated.
LEAVE_TIMEOUT = 30.0
#: The time between the joining of a spare host and the start of the next spare host, in seconds. Without this pause,
#: the imports on the new spare host would slow the joining.
_SPARE_PAUSE_S = 3.0


class HostControl:
    """The control of an elastic job's hosts. It starts hosts, and makes hosts leave. The source that names the places
    of hosts may also request that a host starts or leaves.

    Args:
        controller: The controller of the membership.
        exclusion: The rule that determines how long a host is excluded after a failure.
        most: The maximum number of hosts.
    """

    def __init__(self, controller: ElasticController, exclusion: Exclusion, *, most: int) -> None:
        self._controller = controller
        self.workers = WorkerControl(controller, self, exclusion)
        self._roster = controller.roster
        self._most = most
        self._spares_from = 0.0  # the earliest time for starting spare hosts, on the controller's clock
        self._ends: tuple[Failure, ...] = ()  # the failures of hosts that ended although they were not told to
        self._owed: list[ElasticHost] = []  # lost hosts that will be replaced once a place is free

    # --- hosts that join ---

    def add(self, count: int) -> list[str]:
        """Start more hosts and return their names.

        Raises:
            ValueError: the job would have more hosts than it may have, or there are too few places for them.
        """
        controller = self._controller
        located = controller.backend.locates
        deciding.refuse_more(self._roster, controller.places, count, most=self._most, located=located)
        return [self.start_host(controller.strategy.processes_per_host) for _ in range(count)]

    def start_host(self, slots: int, place: str | None = None) -> str:
        """Let a spare host join if one is ready. Otherwise, start a new host. Return the host's name.

        Args:
            slots: The number of workers on the host.
            place: The place for a new host. None if the backend selects the place.
        """
        controller, spare = self._controller, self._roster.spare
        if spare is None or slots != spare.slots:
            return self._start(slots, place=place)
        spare.spare = False
        controller.job.event("host_added", name=spare.name, spare=True)
        controller.job.say(f"{spare.name}, a spare host, joins")
        for worker in spare.workers.values():
            if worker.state is WorkerState.READY:  # the host may lack the checkpoints that were saved meanwhile
                worker.state = WorkerState.PREPARING
                self.workers.take_ready(worker)
        self._spares_from = controller.clock() + _SPARE_PAUSE_S
        controller.later(_SPARE_PAUSE_S + 0.1, self.keep_spares)
        return spare.name

    def _start(self, slots: int, *, spare: bool = False, place: str | None = None) -> str:
        controller = self._controller
        name = controller.backend.next_host()
        self._roster.add(ElasticHost(name, slots=slots, spare=spare))
        if not spare:
            controller.job.event("host_added", name=name)
            controller.job.say(f"{name} is being added{f' at {place}' if place is not None else ''}")
        if place is not None:
            controller.backend.locate(name, place)
        controller.backend.add_host(name)
        controller.note()
        return name

    def keep_spares(self) -> None:
        """Start the missing spare hosts. Do nothing before the first cluster has formed."""
        controller = self._controller
        if not controller.state.has_met or controller.over or controller.clock() < self._spares_from:
            return
        for _ in range(deciding.lacking_spares(self._roster, controller.places, controller.strategy.spares)):
            self._start(controller.strategy.processes_per_host, spare=True)

    def is_up(self, host: ElasticHost) -> None:
        """Handle the message that a host's toolkit, the process that starts the workers, has started."""
        host.up = True
        self.begin(host)
        self.finish_leaving(host)  # the toolkit could not receive an earlier request to leave
        self.keep_spares()

    def begin(self, host: ElasticHost) -> None:
        """Prepare the workers of a host, if the host has started and its place is known."""
        if host.state is HostState.STARTING and host.up and not deciding.stands_by(host, self._controller.places):
            host.state = HostState.READY
            for slot in range(host.slots):
                self.workers.prepare(host, slot)

    # --- hosts that are lost ---

    def ended(self, end: HostEnd) -> None:
        """Handle the end of a host's toolkit."""
        controller = self._controller
        host = self._roster.hosts.get(end.host)
        if host is None or host.state is HostState.GONE:
            return
        expected = host.state is HostState.LEAVING
        host.state = HostState.GONE
        if controller.over:
            return
        told = end.exit_code == 128 + signal.SIGTERM or end.signal == signal.SIGTERM
        lost = (
            end.failure
            or host.failure
            or Failure(
                cause=Cause.HOST_LOST,
                message=TERMINATED if told else "the host's training process ended.",
                host=host.name,
                exit_code=end.exit_code,
            )
        )
        if not host.up and not expected:  # the host never came up: delay its replacement, as after a failure
            self.workers.exclude(host)
        for worker in host.workers.values():
            self.workers.ended(worker, 128 + signal.SIGKILL, None if expected else lost, of_host=True)
        if host.name in self._roster.leaving:
            self._roster.leaving.remove(host.name)
        controller.job.event("host_left" if expected else "host_lost", name=host.name, reason=lost.message)
        if host.replace and not (expected or told):
            self._ends += (lost,)
            if deciding.is_hopeless(self._roster, controller.places, self._ends):
                controller.fail(lost)
                return
        controller.job.say(f"{host.name} {'has left' if expected else f'was lost: {lost.message}'}")
        wait = None if expected else deciding.replacement_wait(self._roster, host, controller.clock())
        if wait is not None:
            controller.later(wait, lambda: self._replace(host))
        else:
            self._settle_debts()  # the place of the host is free
        controller.note()
        controller.offer()

    def _replace(self, lost: ElasticHost) -> None:
        """Start a replacement for a lost host. The replacement gets a new name."""
        places = self._controller.places
        if len(self._roster.staying) >= self._most or (places is not None and not places.may_replace(lost.name)):
            return
        if self._roster.spare is None and deciding.free_places(self._roster, places) < 1:
            self._owed.append(lost)
            return
        name = self.start_host(lost.slots, places.place_of(lost.name) if places is not None else None)
        if not lost.up:
            self._roster.hosts[name].origin = lost.known_as
        if places is not None:
            places.replaced(lost.name, name)

    def _settle_debts(self) -> None:
        """Replace the lost hosts that could not be replaced before because there was no free place."""
        owed, self._owed = self._owed, []
        for host in owed:
            self._replace(host)

    def lose(self, name: str) -> None:
        """Kill a host at once. The host is not replaced.

        Raises:
            ValueError: the job has no such host.
        """
        host = self._roster.present(name)
        host.replace = False
        self._controller.backend.kill_host(name)

    # --- hosts that leave ---

    def remove(self, name: str) -> None:
        """Remove a host gracefully. After their next commit, the other hosts continue without the removed host.

        Raises:
            ValueError: the job has no such host, or too few hosts would remain.
        """
        host = self._roster.present(name)
        if host.state is HostState.LEAVING:
            return
        strategy = self._controller.strategy
        deciding.refuse_fewer(
            self._roster,
            name,
            self._controller.limits,
            per_host=strategy.processes_per_host,
            least_hosts=strategy.min_hosts,
        )
        self._begin_without(host)
        self.leave(host)

    def interrupt(self, name: str, notice_s: float) -> None:
        """Interrupt a spot host. The host is killed if it has not left within ``notice_s`` seconds.

        If no worker trains on the other hosts, the whole job is preempted.

        Raises:
            ValueError: the job has no such host.
        """
        controller = self._controller
        host = self._roster.present(name)
        controller.job.event("notice", name=name, seconds=notice_s)
        controller.job.say(f"{name} has a preemption notice: the host leaves within {notice_s:g} s")
        if controller.state.has_met and not self._roster.trains_without(name):
            controller.job.preempt(name, notice_s)
            return
        host.noticed = True
        self._begin_without(host)
        self.leave(host)

        def take() -> None:
            if host.state is not HostState.GONE:
                controller.backend.kill_host(name)

        controller.later(notice_s, take)

    def _begin_without(self, host: ElasticHost) -> None:
        """Lower the number of workers that the training begins with, if a host leaves before the training has begun."""
        controller = self._controller
        if not controller.state.has_begun and host.state is not HostState.LEAVING:
            first = max(controller.limits.least, controller.limits.first - host.slots)
            controller.limits = dataclasses.replace(controller.limits, first=first)

    def leave(self, host: ElasticHost) -> None:
        """Make a host leave the job. Do nothing if the host is already leaving."""
        controller = self._controller
        if host.state is HostState.LEAVING:
            return
        host.state = HostState.LEAVING
        host.replace = False
        self._roster.leaving.append(host.name)
        controller.job.event("host_leaving", name=host.name)
        controller.note()
        controller.offer()
        self.finish_leaving(host)
        if not host.up:
            controller.backend.withdraw(host.name)

    def stay(self, host: ElasticHost) -> bool:
        """Cancel the removal of a leaving host if at least one of the host's workers is still a member with a rank.

        Returns:
            Whether the host stays.
        """
        controller = self._controller
        inside = [worker for worker in host.workers.values() if worker.name in self._roster.members]
        if host.state is not HostState.LEAVING or not any(worker.state is WorkerState.PLACED for worker in inside):
            return False
        host.state = HostState.READY
        host.replace = True
        self._roster.leaving.remove(host.name)
        controller.job.event("host_staying", name=host.name)
        controller.note()
        for worker in inside:
            if worker.state is WorkerState.ENDED:
                self.workers.again(host, worker.slot)
        controller.offer()
        return True

    def finish_leaving(self, host: ElasticHost) -> None:
        """Stop the toolkit of a leaving host when none of the host's workers is in the cluster any more."""
        placed = any(worker.state.has_place for worker in host.workers.values())
        if host.state is HostState.LEAVING and not placed:
            self._controller.instruct(host.name, "finish")

    def hurry(self) -> None:
        """Terminate workers of leaving hosts in ``LEAVE_TIMEOUT`` seconds, if the workers have lost their rank but have
        not exited by then.
        """

        def end(host: ElasticHost) -> None:
            for worker in host.workers.values() if host.state is HostState.LEAVING else ():
                if worker.state is WorkerState.PLACED and worker.name not in self._roster.members:
                    self._controller.instruct(host.name, "end_worker", worker=worker.name)

        for host in self._roster.present_hosts:
            if host.state is HostState.LEAVING:
                self._controller.later(LEAVE_TIMEOUT, lambda host=host: end(host))  # type: ignore[misc]

    # --- requests of a source of places ---

    def locate(self, host: str, place: str) -> None:
        """Register a host's place with the backend, and log the place."""
        self._controller.backend.locate(host, place)
        self._controller.job.say(f"{host} is at {place}")

    def notice(self, host: str, seconds: float) -> None:
        """Handle a preemption notice of the source in the same way as a notice of the backend."""
        self._controller.job.interrupted(host, seconds)

    def places_known(self) -> None:
        """Prepare the hosts that have started, and replace lost hosts. Call the function when the source has named the
        places.
        """
        for host in self._roster.present_hosts:
            self.begin(host)
        self._settle_debts()
        self.keep_spares()
        self._controller.offer()

    def say(self, text: str) -> None:
        """Write a line into the log."""
        self._controller.job.say(text)

    def no_places(self, problem: str) -> None:
        """Fail the job because its source has named no places for hosts."""
        self._controller.fail_with(f"the hosts of the job are not known: {problem}", Cause.LAUNCH)
