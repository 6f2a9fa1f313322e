"""Assign ranks to the workers of an elastic torch_distributed job, where all workers restart when a worker is lost or
joins.

The driver in this module is used instead of Horovod's driver (:mod:`.driver`). Both drivers send these messages to the
controller:

* ``start``: a worker gets a rank and an environment.
* ``end``: a worker has no rank any more and must exit.
* ``membership``: the workers in rank order.
* ``waiting``, ``enough``, ``too_few`` and ``finished``: the state of the cluster.

The driver in this module also sends ``restart``: a worker must exit and wait for a new rank. It receives these messages
from the controller:

* ``workers``: the workers that the cluster should have, oldest first.
* ``ready``: a worker has exited and waits for a new rank.
* ``done``: a worker's script is complete.
* ``failed``: a worker's script has failed.
* ``ended``: a worker is gone.

A membership is the period in which the same workers train together. It begins when every worker of the previous
membership has ended and all hosts have the newest checkpoints. Thus no worker can connect to a process of an earlier
membership.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from container.contract.elastic import split_worker
from container.contract.membership import ClusterHost, Membership
from container.contract.messages import Message
from container.contract.strategies import ElasticTorchDistributed
from container.launchers import torch_distributed
from container.system.asyncio_loop import AsyncioLoop
from container.system.loop import Timer
from estimators.backends.base import Backend
from estimators.supervisor.elastic.members import Roster
from estimators.supervisor.elastic.policy import Limits

if TYPE_CHECKING:
    from estimators.supervisor.elastic.controller import ElasticController

#: How long workers may take to save and exit before a planned change, in seconds. torchrun uses the same time.
PLANNED_GRACE_S = 30.0
#: How long workers may take to exit after a member was lost, in seconds. The time is short because the workers' current
#: step has failed anyway.
_LOSS_GRACE_S = 0.5
#: How long to wait for the failure or loss of the worker that has caused another worker's failure, in seconds. A worker
#: closes its connections, which fails the other workers, before its own failure is reported.
_CAUSE_S = 2.0


class RestartPhase(enum.Enum):
    """A phase of the driver, during a membership or between two memberships."""

    #: Too few workers are available.
    WAITING = "waiting"
    #: The workers of the last membership exit.
    ENDING = "ending"
    #: The workers have exited, and every host gets the newest checkpoints.
    SHARING = "sharing"
    #: The workers train.
    RUNNING = "running"
    #: The membership is final.
    CLOSED = "closed"


class RestartingDriver:
    """The driver that assigns ranks to workers which restart. All methods return at once, and messages are delivered
    afterwards.

    Args:
        loop: The supervisor's event loop.
        controller: The controller, which receives the messages.
        backend: The backend that runs the hosts. The backend copies the newest checkpoints to all hosts.
        strategy: The job's strategy.
        limits: The least and the largest number of workers in a membership.
        roster: The hosts and workers.
        restarts: How often all workers were started in earlier attempts.

    Attributes:
        pid: Always None, because this driver is not a separate process.
    """

    pid: int | None = None

    def __init__(
        self,
        loop: AsyncioLoop,
        controller: ElasticController,
        backend: Backend,
        *,
        strategy: ElasticTorchDistributed,
        limits: Limits,
        roster: Roster,
        restarts: int,
    ) -> None:
        self._loop = loop
        self._strategy = strategy
        self._least = limits.least
        self._roster = roster
        self._restarts = restarts
        self._controller = controller
        self._backend = backend
        self._phase = RestartPhase.WAITING
        self._wanted: tuple[str, ...] = ()
        self._members: tuple[str, ...] = ()
        self._awaited: set[str] = set()  # members that have not exited yet
        self._told: set[str] = set()  # members that were told to exit and not to wait for a rank
        self._done: set[str] = set()
        self._generation = -1  # the number of the last membership
        self._failures = 0  # failures of the script itself, as opposed to lost workers
        self._grace = 0.0  # how long workers may take to exit, in seconds
        self._has_failed = False  # whether the script has failed in the current membership
        self._has_lost = False
        self._consequences: set[str] = set()  # members that have failed only because another member had failed
        self._cause_wait: Timer | None = None
        self._waits: Timer | None = None
        self._wait()

    def send(self, message: Message) -> None:
        """Handle a message from the controller."""
        worker = str(message.get("worker"))
        match message["op"]:
            case "workers":
                self._wanted = tuple(str(name) for name in message["workers"])
                self._changed()
            case "ready":
                self._awaited.discard(worker)
                self._check()
            case "done":
                self._is_done(worker)
            case "failed":
                self._has_failed_by_itself(worker, consequence=bool(message["consequence"]))
            case "ended":
                self._ended(worker)

    def close(self) -> None:
        """Stop making decisions and sending messages."""
        self._phase = RestartPhase.CLOSED
        for timer in (self._waits, self._cause_wait):
            if timer is not None:
                timer.cancel()

    # --- messages from the controller ---

    def _changed(self) -> None:
        if self._phase is RestartPhase.WAITING:
            self._place()
        elif self._phase is RestartPhase.RUNNING and set(self._wanted) != set(self._members) and not self._done:
            self._end(_LOSS_GRACE_S if self._has_failed else PLANNED_GRACE_S)
        elif self._phase is RestartPhase.ENDING:
            self._end_displaced(PLANNED_GRACE_S)

    def _is_done(self, worker: str) -> None:
        if self._phase is RestartPhase.RUNNING and worker in self._members:
            self._done.add(worker)
            if self._done.issuperset(self._members):
                self._tell("finished", error="")
            elif self._consequences:
                self._end_if_nobody_is_left()

    def _has_failed_by_itself(self, worker: str, *, consequence: bool) -> None:
        if worker not in self._members:
            return
        self._has_failed = True
        if not consequence and not self._has_lost and self._failures >= self._strategy.max_restarts:
            self._tell("finished", error=self._too_often, blamed=True)
        elif self._phase is RestartPhase.RUNNING and consequence:
            self._await_cause(worker)
        elif self._phase is RestartPhase.RUNNING:
            self._end(_LOSS_GRACE_S)

    def _await_cause(self, worker: str) -> None:
        """Give the worker that has caused another worker's failure time to fail, before the other workers are told to
        exit. Otherwise the cause would not be reported.
        """
        self._consequences.add(worker)
        if self._cause_wait is None:
            self._cause_wait = self._loop.call_later(_CAUSE_S, lambda: self._end(_LOSS_GRACE_S))
        self._end_if_nobody_is_left()

    def _end_if_nobody_is_left(self) -> None:
        """Make the members exit if the scripts of all members have ended, so that no cause will be reported."""
        if self._consequences | self._done >= set(self._members):
            self._end(_LOSS_GRACE_S)

    @property
    def _too_often(self) -> str:
        most = self._strategy.max_restarts
        return f"the script has failed {'again ' if most else ''}after {most} restarts (max_restarts={most})"

    def _ended(self, worker: str) -> None:
        self._wanted = tuple(name for name in self._wanted if name != worker)
        self._awaited.discard(worker)
        if worker not in self._members:
            return
        if worker not in self._told:
            self._has_lost = True
            if self._phase is RestartPhase.RUNNING:
                self._members = tuple(name for name in self._members if name != worker)
                self._end(_LOSS_GRACE_S)
                return
            if self._phase is RestartPhase.ENDING and self._grace > _LOSS_GRACE_S:  # the other workers cannot continue
                self._grace = _LOSS_GRACE_S
                for name in self._awaited - self._told:
                    self._tell("restart", worker=name, grace=_LOSS_GRACE_S)
        self._members = tuple(name for name in self._members if name != worker)
        self._check()

    # --- from one membership to the next ---

    def _end(self, grace: float) -> None:
        """Make the members exit. Members that are to be in the next membership then wait for a new rank.

        Args:
            grace: How long the members may take to exit, in seconds.
        """
        self._phase = RestartPhase.ENDING
        self._grace = grace
        if self._cause_wait is not None:
            self._cause_wait.cancel()
            self._cause_wait = None
        self._consequences.clear()
        self._done.clear()
        self._awaited = set(self._members)
        for worker in self._members:
            if worker in self._wanted:
                self._tell("restart", worker=worker, grace=grace)
        self._end_displaced(grace)
        self._check()

    def _end_displaced(self, grace: float) -> None:
        for worker in self._members:
            if worker not in self._wanted and worker not in self._told:
                self._told.add(worker)
                self._tell("end", worker=worker, grace=grace)

    def _check(self) -> None:
        if self._phase is not RestartPhase.ENDING or self._awaited:
            return
        self._phase = RestartPhase.SHARING
        self._loop.start(self._place_with_newest())

    async def _place_with_newest(self) -> None:
        """Copy the newest checkpoints to all hosts, then begin the next membership."""
        await self._backend.share_checkpoints()
        if self._phase is RestartPhase.SHARING:
            self._place()

    def _place(self) -> None:
        """Begin the next membership if enough workers are available."""
        if self._has_failed and not self._has_lost:
            self._failures += 1
            if self._failures > self._strategy.max_restarts:
                self._tell("finished", error=self._too_often, blamed=True)
                return
        self._has_failed = self._has_lost = False
        self._end_displaced(_LOSS_GRACE_S)  # workers that were told to leave after they had exited
        if len(self._wanted) < max(self._least, 1):
            self._wait()
            return
        limit = self._strategy.reset_limit
        if limit is not None and self._generation >= limit:
            self._tell("finished", error=f"the workers have restarted {limit} times (reset_limit={limit})")
            return
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
            self._tell("enough")
        self._generation += 1
        self._phase = RestartPhase.RUNNING
        self._told.clear()
        self._members = self._begin()
        self._tell("membership", generation=self._generation, workers=list(self._members))

    def _wait(self) -> None:
        self._phase = RestartPhase.WAITING
        if self._waits is None:
            self._tell("waiting")
            self._waits = self._loop.call_later(self._strategy.elastic_timeout, lambda: self._tell("too_few"))

    def _begin(self) -> tuple[str, ...]:
        """Send each worker its environment. Return the names of the workers, by rank."""
        by_host: dict[str, list[str]] = {}
        for worker in self._wanted:
            by_host.setdefault(split_worker(worker)[0], []).append(worker)
        for workers in by_host.values():
            workers.sort(key=lambda name: split_worker(name)[1])
        membership = Membership(
            hosts=tuple(self._host(name, len(workers)) for name, workers in by_host.items()),
            generation=self._generation,
        )
        placed = []
        for rank, host, local_rank in membership.ranks():
            worker = by_host[host.name][local_rank]
            environment = torch_distributed.rank_variables(
                membership,
                host,
                rank,
                local_rank,
                run_id=self._backend.record.name,
                restarts=self._restarts + self._generation,
                max_restarts=self._strategy.max_restarts,
            )
            placed.append(worker)
            self._tell("start", worker=worker, environment=environment)
        return tuple(placed)

    def _host(self, name: str, slots: int) -> ClusterHost:
        known = self._roster.hosts[name]
        ports = known.ports or tuple(torch_distributed.STORE_PORT + number for number in range(100))
        port = ports[self._generation % len(ports)]
        return ClusterHost(name=name, slots=slots, address=known.address or None, ports=(port,))

    def _tell(self, operation: str, **values: Any) -> None:
        def deliver() -> None:
            if self._phase is not RestartPhase.CLOSED:
                self._controller.from_driver({"op": operation, **values})

        self._loop.call_later(0.0, deliver)
