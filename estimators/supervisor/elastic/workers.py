"""Prepare, place and terminate the workers of an elastic job, and replace lost workers after a cooldown."""

from __future__ import annotations

import json
import math
import signal
from typing import TYPE_CHECKING, Any

from container.contract import variables
from container.contract.failures import Failure
from container.contract.strategies import ElasticHorovod
from container.system.loop import Timer
from estimators.supervisor.elastic import deciding
from estimators.supervisor.elastic.course import State, TrainingEvent
from estimators.supervisor.elastic.deciding import WorkerEnd
from estimators.supervisor.elastic.exclusion import Exclusion
from estimators.supervisor.elastic.members import ElasticHost, HostState, Worker, WorkerState

if TYPE_CHECKING:
    from estimators.supervisor.elastic.controller import ElasticController
    from estimators.supervisor.elastic.hosts import HostControl

#: How long the other members may take to form a cluster after the loss of a member, in seconds. During this time, no
#: change is sent to the driver.
_SETTLE_S = 2.0
#: The job fails if this many workers have ended before the first cluster has formed.
_HOPELESS = 3


class WorkerControl:
    """The control of the workers on all present hosts. The class starts workers, gives them ranks, and terminates them.

    Args:
        controller: The controller of the membership.
        hosts: The control of the workers' hosts.
        exclusion: The rule that determines how long a host is excluded after a failure.

    Attributes:
        trains: Whether the script has reported that it trains. A worker that joins later is told by an environment
            variable that it is late.
        injected: The ids of the faults that the script has injected. A restarted script does not repeat these faults.
    """

    def __init__(self, controller: ElasticController, hosts: HostControl, exclusion: Exclusion) -> None:
        self._controller = controller
        self._hosts = hosts
        self._roster = controller.roster
        self._exclusion = exclusion
        self._hopeless = 0
        self._settled: Timer | None = None
        self.trains = False
        self.injected: list[Any] = []

    def prepare(self, host: ElasticHost, slot: int) -> None:
        """Prepare a new worker in a slot of a host."""
        controller = self._controller
        if controller.over or host.state is not HostState.READY:
            return
        worker = self._roster.new_worker(host, slot)
        warm = not isinstance(controller.strategy, ElasticHorovod) or controller.strategy.warm
        controller.instruct(host.name, "prepare", worker=worker.name, slots=host.slots, warm=warm)
        if not warm:
            self.take_ready(worker)

    def take_ready(self, worker: Worker) -> None:
        """Handle the message that a worker is ready for a rank.

        If the training has begun and the worker's host has no worker in the cluster, copy the newest checkpoints to the
        host first.
        """
        controller = self._controller
        if worker.state is WorkerState.RESTARTING:
            self._controller.tell_driver({"op": "ready", "worker": worker.name})
        if worker.state is not WorkerState.PREPARING:
            return
        host = self._roster.hosts[worker.host]
        placed = any(other.state.has_place for other in host.workers.values())
        if controller.state.has_met and not controller.over and not placed:
            controller.loop.start(self._refresh(worker))
        else:
            self._is_ready(worker)

    async def _refresh(self, worker: Worker) -> None:
        await self._controller.backend.refresh_checkpoints(worker.host)
        self._is_ready(worker)

    def _is_ready(self, worker: Worker) -> None:
        if worker.state is WorkerState.PREPARING:
            worker.state = WorkerState.READY
            self._controller.offer()

    def place(self, worker: Worker, environment: dict[str, str]) -> None:
        """Start a worker's script with the environment from the driver."""
        if worker.state in (WorkerState.READY, WorkerState.RESTARTING):
            worker.state = WorkerState.PLACED
            late = {variables.ELASTIC_LATE: "1"} if self.trains and not self._roster.restarts else {}
            if self._roster.restarts and self.injected:
                late[variables.FAULTS_DONE] = json.dumps(self.injected)
            self._controller.instruct(worker.host, "place", worker=worker.name, environment={**environment, **late})

    def restart(self, worker: Worker, grace: float) -> None:
        """Restart a worker. Its process exits within ``grace`` seconds, and the next process waits for a new rank."""
        if worker.state.has_place:
            worker.state = WorkerState.RESTARTING
            worker.ended_with = None
            self._controller.instruct(worker.host, "restart", worker=worker.name, grace=grace)

    def end(self, worker: Worker, grace: float | None = None) -> None:
        """Terminate a worker that has no place in the cluster any more.

        Args:
            worker: The worker.
            grace: How long the worker may take to exit, in seconds. None for the host's default.
        """
        if worker.state is WorkerState.ENDED:
            return
        worker.leaves = True
        if self._roster.restarts and worker.ended_with is not None:  # the script has ended already
            self.ended(worker, worker.ended_with or 128 + signal.SIGTERM, None)
            return
        given = {} if grace is None else {"grace": grace}
        self._controller.instruct(worker.host, "end_worker", worker=worker.name, **given)

    def ended(self, worker: Worker, code: int, failure: Failure | None, *, of_host: bool = False) -> None:
        """Handle the end of a worker.

        Args:
            worker: The worker.
            code: The worker's exit code. The code is 128 + the number of the signal if a signal killed the worker.
            failure: The worker's failure, or None if the failure is unknown.
            of_host: Whether the worker ended because its host ended.
        """
        if worker.state is WorkerState.ENDED:
            return
        before, worker.state, worker.ended_with = worker.state, WorkerState.ENDED, code
        host, members = self._roster.hosts[worker.host], self._roster.members
        what = deciding.end_of(worker, before, host, members)
        if before.has_place:
            self._controller.tell_driver({"op": "ended", "worker": worker.name, "code": code})
            if worker.name in members and what is not WorkerEnd.DONE:
                self._settle()
        if what is WorkerEnd.DISPLACED:
            self.again(host, worker.slot)
        elif what is WorkerEnd.LEFT:
            self._hosts.finish_leaving(host)
            self._end_if_state_is_lost()
            self._controller.offer()
        elif what is WorkerEnd.LOST and self._lost(worker, before, host, failure, of_host=of_host):
            self._end_if_state_is_lost()
            self._controller.offer()

    def _lost(
        self, worker: Worker, before: WorkerState, host: ElasticHost, failure: Failure | None, *, of_host: bool
    ) -> bool:
        """Handle the loss of a worker: exclude the worker's host for a while.

        Unless the host itself has ended, schedule another worker for the time after the exclusion. Fail the job if too
        many workers have ended before the first cluster has formed.

        Returns:
            Whether the training continues.
        """
        controller, code = self._controller, worker.ended_with
        seconds = self.exclude(host)
        if failure is not None:
            controller.failures[worker.name] = failure
        if worker.name not in self._roster.members and not of_host:
            self._hopeless += 1
            if self._hopeless >= _HOPELESS and not controller.state.has_met:
                early = ", without calling hvd.init()" if code == 0 and before is WorkerState.PREPARING else ""
                controller.fail(failure or deciding.failed(f"the workers end before the training begins{early}"))
                return False
        reason = failure.summary() if failure is not None else ""
        controller.job.event(
            "worker_lost", worker=worker.name, name=host.name, exit_code=code, rank=worker.rank, reason=reason
        )
        if not of_host:
            ever = math.isinf(seconds)
            controller.job.event("host_excluded", name=host.name, seconds=None if ever else round(seconds, 3))
            controller.job.say(
                f"a worker of {host.name} was lost{f' ({reason})' if failure else ''}; no new worker starts on this "
                f"host {'any more' if ever else f'for {seconds:.1f} s'}."
            )
            self.again(host, worker.slot)
        return True

    def exclude(self, host: ElasticHost) -> float:
        """Exclude a host after a failure, so that no new worker starts on the host. Return the duration of the
        exclusion in seconds.
        """
        controller = self._controller
        now = controller.clock()
        place = controller.places.place_of(host.name) if controller.places is not None else None
        host.excluded_until = self._exclusion.failed(place or host.known_as, now)
        return host.excluded_until - now

    def again(self, host: ElasticHost, slot: int) -> None:
        """Start another worker in a slot as soon as the slot's host is not excluded any more."""

        def prepare() -> None:
            if host.workers[slot].state is WorkerState.ENDED:
                self.prepare(host, slot)

        if not math.isinf(host.excluded_until):
            self._controller.later(max(0.05, host.excluded_until - self._controller.clock()), prepare)

    def _settle(self) -> None:
        """Delay decisions for ``_SETTLE_S`` seconds after the loss of a member.

        During this time, the other members form a cluster again by themselves.
        """
        controller = self._controller
        if controller.over:
            return

        def settled() -> None:
            controller.move(TrainingEvent.SETTLED)
            controller.offer()

        controller.move(TrainingEvent.LOSS)
        if self._settled is not None:
            self._settled.cancel()
        self._settled = controller.later(_SETTLE_S, settled)

    def _end_if_state_is_lost(self) -> None:
        """End the training if it waits for workers and all of its members have been lost. The training's state was only
        in the members, so the state is lost, too.

        If the state is in checkpoints, do nothing: the training continues when there are enough workers again.
        """
        controller = self._controller

        def end() -> None:
            if controller.state is State.SHORT and not self._roster.members_left:
                controller.finished("")

        if controller.state is State.SHORT and not self._roster.members_left and not self._roster.restarts:
            controller.later(0.0, end)  # handle pending events of hosts that have just ended first

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to the worker that currently has a rank.

        Raises:
            ValueError: no worker has the rank.
        """
        worker = self._roster.with_rank(rank)
        if worker is None:
            raise ValueError(f"there is no rank {rank}; there are {len(self._roster.members)} workers.")
        self._controller.instruct(worker.host, "signal", worker=worker.name, number=number)
