"""Control the membership of an elastic job in its supervisor: hosts and workers (:mod:`.members`) join and leave.

A worker is a process that trains. A worker in the cluster has a rank. A host's toolkit is the process that starts the
workers of the host.

The controller sends the list of workers to a driver, which assigns the ranks. The driver is either Horovod's
(:mod:`.driver`) or the driver for workers that restart (:mod:`.restarting`). A new worker is added to the list only
after it has imported its modules. Until then, the other workers train. The decisions are in :mod:`.deciding` and
:mod:`.policy`, which use no clock. :mod:`.hosts` and :mod:`.workers` carry out the decisions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from container.contract.failures import Cause, Failure
from container.contract.messages import Message, encode
from container.contract.strategies import Elastic, ElasticHorovod, ElasticTorchDistributed
from container.contract.wire import Event
from container.system.asyncio_loop import AsyncioLoop
from container.system.loop import Timer
from estimators.backends import local
from estimators.backends.base import Backend
from estimators.job.errors import FleetfitError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.elastic_events import Telling
from estimators.supervisor.elastic import deciding, sources
from estimators.supervisor.elastic.course import TRANSITIONS, State, TrainingEvent
from estimators.supervisor.elastic.driver import DriverProcess
from estimators.supervisor.elastic.exclusion import Exclusion, load_policy
from estimators.supervisor.elastic.hanging import Hanging
from estimators.supervisor.elastic.hosts import HostControl
from estimators.supervisor.elastic.members import Roster, Worker, WorkerState
from estimators.supervisor.elastic.places import Places
from estimators.supervisor.elastic.policy import GrowingCooldown, Limits
from estimators.supervisor.elastic.restarting import RestartingDriver
from estimators.supervisor.elastic.wording import Wording

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor


class ElasticController:
    """The controller of the membership in one attempt of an elastic job.

    Args:
        loop: The supervisor's event loop.
        job: The supervisor.
        backend: The backend that runs the hosts. The backend must be able to add hosts.
        spec: The job's spec as the user has planned it.
        options: The job's run options.
        hosts: The hosts with which the attempt begins.
        driver: The class that starts the process of Horovod's driver.

    Attributes:
        state: The state of the training.
        roster: The hosts and workers.
        limits: The limits for changes of the membership.
        places: The places at which hosts can run, if a source names places for the job. Otherwise None.
        failures: The last failure of each worker, by the worker's name.
        consequences: The workers whose failure is the consequence of another worker's failure.
        driver_waits: Whether the driver waits because there are too few workers. The wait has a time limit.

    Raises:
        ConfigurationError: the user's rule for failed hosts cannot be loaded.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        job: Supervisor,
        backend: Backend,
        spec: TrainingJobSpec,
        options: RunOptions,
        hosts: tuple[str, ...],
        *,
        driver: type[DriverProcess] = DriverProcess,
    ) -> None:
        strategy = spec.strategy
        assert isinstance(strategy, Elastic)  # other strategies have no controller
        self.loop = loop
        self.job = job
        self.backend = backend
        self.strategy: Elastic = strategy
        self.state = State.GATHERING
        self.roster = Roster(hosts, strategy.processes_per_host, restarts=strategy.restarts)
        planned_hosts = len(spec.hosts)
        self.limits = Limits(
            first=strategy.first_workers(len(hosts)),
            least=strategy.least_workers,
            most=strategy.most_workers(planned_hosts),
            max_join=strategy.max_join,
            max_leave=strategy.max_leave,
            grow_every=strategy.grow_every,
        )
        self.places: Places | None = None
        self.failures: dict[str, Failure] = {}
        self.consequences: set[str] = set()
        self.driver_waits = False
        self._python = options.python
        self._start_timeout = options.start_timeout
        self._driver_type = driver
        self._telling = Telling()
        self._planned = strategy.planned_workers(planned_hosts)
        self._most_hosts = strategy.most_hosts(planned_hosts)
        self._wording = Wording(strategy, self.roster)
        own = load_policy(strategy.exclusion) if strategy.exclusion is not None else None
        self.hosts = HostControl(self, Exclusion(GrowingCooldown(*strategy.cooldown), own, job), most=self._most_hosts)
        self.workers = self.hosts.workers
        self._offered: tuple[str, ...] = ()
        self._awaited = ""  # the last message about the workers that the job needs to begin
        self._complete = False
        self._grown_at: float | None = None
        self._driver: DriverProcess | RestartingDriver | None = None
        self._restarts = sum(map(_is_start, backend.record.events())) if strategy.restarts else 0
        self._cause: Failure | None = None  # the first failure of the script in this membership
        self._is_sure = False  # whether this failure is known to be no consequence of another failure
        self._timers: set[Timer] = set()
        self._closing = contextlib.ExitStack()  # closed when the membership is final
        self._hanging: Hanging | None = None
        if spec.hang_timeout:
            self._hanging = Hanging(loop, spec.hang_timeout, self)
            self._closing.callback(self._hanging.close)

    # --- methods for the controller's parts ---

    @property
    def over(self) -> bool:
        """Return whether the membership is final because the job is complete, has failed, or is being stopped."""
        return self.state is State.OVER

    def move(self, event: TrainingEvent) -> None:
        """Change to the state that follows an event."""
        self.state = TRANSITIONS.following(self.state, event)

    def clock(self) -> float:
        """Return the current time of the event loop's clock in seconds. This clock never goes backwards."""
        return self.loop.time()

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Schedule a call of ``callback`` in ``seconds`` seconds, and return the timer.

        The call is omitted if the training is over by then.
        """

        def call() -> None:
            self._timers.discard(timer)
            if not self.over:
                callback()

        timer = self.loop.call_later(seconds, call)
        self._timers.add(timer)
        return timer

    def instruct(self, host: str, operation: str, **values: Any) -> None:
        """Send an instruction to a host's toolkit."""
        self.backend.say(host, encode({"op": operation, **values}))

    def note(self) -> None:
        """Store the membership in the job's status."""
        self.job.note_hosts(self.roster.to_list())

    def fail(self, failure: Failure) -> None:
        """Close the controller, and fail the job with a failure."""
        if not self.over:
            self.close()
            self.job.fail_job(failure)

    def fail_with(self, message: str, cause: Cause) -> None:
        """Close the controller, and fail the job. The failure concerns the whole training, not one worker.

        Args:
            message: The text of the failure.
            cause: The cause of the failure.
        """
        self.fail(deciding.failed(message, cause))

    def close(self) -> None:
        """Stop making decisions, cancel the timers, and close the driver."""
        if self.over:
            return
        self.move(TrainingEvent.END)
        self._closing.close()
        for timer in self._timers:
            timer.cancel()

    # --- the course of the job ---

    def start(self) -> None:
        """Start the timers and the source that names the places of hosts.

        A place is where a host can run, such as a machine. The first hosts are started by the backend, not here.
        """
        self.later(self._start_timeout, self._start_is_over)
        if self._hanging is not None:
            self._hanging.start()
        self.note()
        source = sources.of_job(self.loop, self.strategy, self.backend)
        if source is not None:
            strategy = self.strategy
            places = self.places = self._wording.places = Places(
                source,
                self.roster.hosts,
                self.hosts,
                most=self._most_hosts,
                slots=strategy.slots or strategy.processes_per_host,
                readers=strategy.processes_per_host if local.piped(self.backend.spec) else None,
            )
            self._closing.callback(places.close)
            places.start()

    def _start_is_over(self) -> None:
        """Begin without the hosts that have not started within ``start_timeout``."""
        if not self.state.has_met:
            if (late := self._wording.late(self._start_timeout)) is not None:
                self.job.say(late)
            self.offer(all_there=False)

    # --- events of hosts ---

    def host_event(self, event: Event) -> None:
        """Handle an event of a host's toolkit."""
        if (told := self._telling.line(event)) is not None:
            self.job.say(told)
        host = self.roster.hosts.get(event.host)
        if self._complete and host is not None and event.kind == "host_ready":
            self.instruct(host.name, "finish")  # the host was still starting when the training ended
        if self.over or host is None:
            return
        if self._hanging is not None:
            self._hanging.heed(event)
        worker = self.roster.workers.get(str(event.data.get("worker")))
        if event.kind == "data":
            self.workers.trains = True
        elif event.kind == "fault_step":
            self.workers.injected.append(event.data.get("id"))
        elif event.kind == "failure":
            host.failure = Failure.from_dict(event.data)
        elif event.kind == "host_ready":
            host.address = str(event.data.get("address") or "")
            host.ports = tuple(int(port) for port in event.data.get("ports") or ())
            if self._driver is None:
                self._start_driver()
            self.hosts.is_up(host)
        elif event.kind == "worker_ready" and worker is not None:
            self.workers.take_ready(worker)
        elif event.kind == "worker_ended" and worker is not None:
            given, code = event.data.get("failure"), event.data.get("exit_code")
            code = int(code) if code is not None else 128 + int(event.data.get("signal") or signal.SIGKILL)
            failure = Failure.from_dict(given) if isinstance(given, dict) else None
            consequence = bool(event.data.get("consequence"))
            if self.roster.restarts and worker.state.has_place and not worker.leaves and not event.data.get("waited"):
                self._script_ended(worker, code, failure, consequence=consequence)
            else:
                if consequence:
                    self.consequences.add(worker.name)
                # A worker that was told to exit has left, even if its script exits with 0.
                self.workers.ended(worker, code or (128 + signal.SIGTERM if worker.leaves else 0), failure)

    def _script_ended(self, worker: Worker, code: int, failure: Failure | None, *, consequence: bool) -> None:
        """Record that a worker's script has ended, and inform the driver.

        Only jobs whose workers can restart use this method, for scripts that have ended without an instruction to exit.

        Args:
            worker: The worker.
            code: The exit code of the script.
            failure: The failure of the script, or None.
            consequence: Whether the failure is the consequence of another worker's failure.
        """
        if worker.state is WorkerState.RESTARTING:
            return  # the worker was told to restart meanwhile
        worker.ended_with = code
        if code == 0:
            self.tell_driver({"op": "done", "worker": worker.name})
            return
        if failure is not None:
            failure = dataclasses.replace(failure, rank=worker.rank)
            if self._cause is None or not (self._is_sure or consequence):
                self._cause, self._is_sure = failure, not consequence
            self.failures[worker.name] = failure
        self.tell_driver({"op": "failed", "worker": worker.name, "consequence": consequence})

    # --- the driver ---

    def _start_driver(self) -> None:
        """Start the driver. Call the function when the first host has reported its address, which the driver needs."""
        if isinstance(self.strategy, ElasticTorchDistributed):
            self._driver = RestartingDriver(
                self.loop,
                self,
                self.backend,
                strategy=self.strategy,
                limits=self.limits,
                roster=self.roster,
                restarts=self._restarts,
            )
            self._closing.callback(self._driver.close)
            return
        assert isinstance(self.strategy, ElasticHorovod)
        try:
            address, interface = self.backend.meeting_place()
            driver = self._driver = self._driver_type(
                self.loop,
                self,
                python=self._python,
                folder=self.backend.record.path,
                strategy=self.strategy,
                planned=self._planned,
                limits=self.limits,
                address=address,
                interface=interface,
            )
        except (OSError, FleetfitError) as error:
            self.fail_with(f"Horovod's elastic driver could not be started: {error}", Cause.LAUNCH)
            return

        self.backend.protected.add(driver.pid)
        self._closing.callback(driver.close)
        self._closing.callback(self.backend.protected.discard, driver.pid)

    @property
    def driver_pid(self) -> int | None:
        """Return the pid of Horovod's driver, or None if the driver does not run."""
        return self._driver.pid if self._driver is not None else None

    def tell_driver(self, message: Message) -> None:
        """Send a message to the driver if the driver runs."""
        if self._driver is not None:
            self._driver.send(message)

    def from_driver(self, message: Message) -> None:
        """Handle a message of the driver."""
        if self.over:
            return
        operation = message["op"]
        worker = self.roster.workers.get(str(message.get("worker")))
        if operation == "start" and worker is not None:
            self.workers.place(worker, message["environment"])
        elif operation == "restart" and worker is not None:
            self.workers.restart(worker, float(message["grace"]))
        elif operation == "end" and worker is not None:
            self.workers.end(worker, message.get("grace"))
        elif operation in ("waiting", "enough"):
            self.driver_waits = operation == "waiting"
        elif operation == "membership":
            self._membership(tuple(str(name) for name in message["workers"]), int(message["generation"]))
        elif operation == "too_few":
            self._too_few()
        elif operation == "finished":
            self.finished(str(message.get("error") or ""), blamed=bool(message.get("blamed")))

    def _membership(self, members: tuple[str, ...], generation: int) -> None:
        before = self.roster.members
        if self.roster.restarts and generation:
            reason = self._cause.summary() if self._cause is not None else ""
            self.job.event("restarted", generation=generation, size=len(members), reason=reason)
            self.job.say(f"all workers restart{f': {reason}' if reason else ''}")
        self._cause, self._is_sure = None, False
        if self.state is State.SHORT:
            self.job.say(f"{len(members)} workers are ready again: the training goes on.")
        is_first = not self.state.has_met
        self.move(TrainingEvent.MEETING)
        if before == members:
            return
        if len(members) > len(before) and before:
            self._grown_at = self.clock()
        self.roster.take_places(members)
        if self.places is not None and is_first:
            self.places.begun()
        joined = [name for name in members if name not in before]
        left = [name for name in before if name not in members]
        self.job.event(
            "resized", size=len(members), before=len(before), workers=list(members), joined=joined, left=left
        )
        self.hosts.keep_spares()
        if before:
            self.job.say(f"{len(before)} -> {len(members)} workers{deciding.changes(joined, left)}")
        self.offer()
        self.hosts.hurry()
        self.note()

    def _too_few(self) -> None:
        """Handle the driver's message that too few workers have joined within ``elastic_timeout``.

        If hosts that were taken away will return, end this attempt so that another attempt follows. Otherwise, fail the
        job.
        """
        if awaited := self.job.await_hosts():  # the hosts are missing, but the training has not failed
            self.job.say(self._wording.another_attempt(awaited))
            return
        unfit = {host.name: host.failure for host in self.roster.hosts.values() if host.failure is not None}
        failures = {**unfit, **self.failures}
        self.fail(self._wording.timed_out(self.limits, failures, has_met=self.state.has_met))

    def finished(self, error: str, *, blamed: bool = False) -> None:
        """Finish the training. How the workers ended determines whether the training is complete or has failed.

        Args:
            error: The error that the driver reports, or an empty text.
            blamed: Whether to report the script's first failure as the job's failure. The driver's error is then only a
                hint.
        """
        failure = deciding.outcome(self.roster, self.failures, error, self.consequences)
        if blamed and self._cause is not None:
            failure = dataclasses.replace(self._cause, hints=(*self._cause.hints, f"{error}."))
        if failure is not None:
            self.fail(failure)
            return
        self.job.event("phase", name="elastic_finished")
        self._complete = True
        self.close()
        for host in self.roster.present_hosts:
            self.instruct(host.name, "finish")
            if not host.up:
                self.backend.withdraw(host.name)  # no need to wait for a host that may never start

    def driver_lost(self, log: str) -> None:
        """Fail the training after the driver has ended unexpectedly.

        Args:
            log: The end of the driver's log.
        """
        if not self.over:
            failure = deciding.failed("Horovod's elastic driver ended unexpectedly", Cause.LAUNCH)
            missing = "No module named 'horovod'" in log
            hints = (
                "Horovod is not installed: run `fleetfit install horovod`."
                if missing
                else "The end of the driver's log is below.",
            )
            self.fail(dataclasses.replace(failure, log_tail=log or None, hints=hints))

    def offer(self, *, all_there: bool = True) -> None:
        """Decide which workers the cluster should have, and send changes to the driver. Send nothing while the first
        workers are still starting.

        Args:
            all_there: Whether the first workers are sent only after all of them have started.
        """
        if self.over or self._driver is None:
            return
        now = self.clock()
        decision = deciding.decide(
            self.state,
            self.roster,
            self.limits,
            self._offered,
            self.places,
            now=now,
            grown_at=self._grown_at,
            all_there=all_there,
        )
        if decision.awaited is not None and sum(decision.awaited) < self.limits.first:
            text = self._wording.too_few_first(sum(decision.awaited), self.limits)
            if text != self._awaited:  # log the message only when it has changed
                self._awaited = text
                self.job.say(text)
        if decision.shortage and self.state is not State.SHORT:
            self.move(TrainingEvent.SHORTAGE)
            there = len(decision.workers if decision.workers is not None else self._offered)
            self.job.say(self._wording.too_few_left(there, self.limits))
        if decision.workers is not None:
            if not self.state.has_begun:
                self.move(TrainingEvent.BEGIN)
            self._offered = decision.workers
            self._driver.send({"op": "workers", "workers": list(decision.workers)})
        if decision.again_at is not None:
            self.later(max(0.1, decision.again_at - now), self.offer)


def _is_start(event: Event) -> bool:
    """Return whether an event reports that all workers have started."""
    return event.kind == "restarted" or (event.kind == "resized" and not event.data.get("before"))
