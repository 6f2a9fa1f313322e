"""An elastic job's membership, in its supervisor: hosts and workers (:mod:`.members`) that come and go.

A driver is told which workers there are, and says which get a place: Horovod's (:mod:`.driver`), or that of workers
which start again (:mod:`.restarting`). It learns of a new one only when that has imported all it needs, so that the
others go on training until then. What is decided is in :mod:`.deciding` and
:mod:`.policy`, without a clock; it is done in :mod:`.hosts` and :mod:`.workers`.
"""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING

from container.contract.failures import Cause, Failure
from container.contract.messages import Message
from container.contract.strategies import Elastic, ElasticHorovod, ElasticTorchDistributed
from container.contract.wire import Event
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends import local
from estimators.backends.base import Backend, HostEnd
from estimators.job.errors import FleetfitError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.elastic_events import Telling
from estimators.supervisor.elastic import deciding, sources
from estimators.supervisor.elastic.course import State, TrainingEvent
from estimators.supervisor.elastic.driver import DriverProcess
from estimators.supervisor.elastic.exclusion import Exclusion, load_policy
from estimators.supervisor.elastic.hanging import Hanging
from estimators.supervisor.elastic.hosts import HostControl
from estimators.supervisor.elastic.members import Roster, Worker, WorkerState
from estimators.supervisor.elastic.places import Places
from estimators.supervisor.elastic.policy import ExclusionPolicy, GrowingCooldown, Limits
from estimators.supervisor.elastic.restarting import RestartingDriver
from estimators.supervisor.elastic.session import Session
from estimators.supervisor.elastic.wording import Wording

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor


class ElasticController:
    """Runs the membership of one elastic job.

    Args:
        loop: The supervisor's loop.
        job: The supervisor.
        backend: Where the hosts run; one that can add hosts.
        strategy: The job's strategy.
        initial: The hosts that it starts with.
        python: The interpreter that has Horovod.
        start_timeout: Seconds in which the first hosts must have come up.
        hang_timeout: Seconds without a sign of life of any worker after which the job fails; None waits for ever.
        planned_hosts: How many hosts the job was planned for, if this attempt does not begin with all of them.
        restarts: How often workers have started in earlier attempts, where they start again in this one.
        exclusion: Decides how long a host is left out after a failure, over the strategy's cooldown.
        driver: The process of Horovod's driver.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        job: Supervisor,
        backend: Backend,
        strategy: Elastic,
        initial: tuple[str, ...],
        *,
        python: str,
        start_timeout: float,
        hang_timeout: float | None = None,
        planned_hosts: int | None = None,
        restarts: int = 0,
        exclusion: ExclusionPolicy | None = None,
        driver: type[DriverProcess] = DriverProcess,
    ) -> None:
        self._loop = loop
        self._job = job
        self._backend = backend
        self._strategy = strategy
        self._python = python
        self._start_timeout = start_timeout
        self._driver_type = driver
        self._telling = Telling()
        planned_hosts = planned_hosts or len(initial)
        limits = Limits(
            first=strategy.first_workers(len(initial)),
            least=strategy.least_workers,
            most=strategy.most_workers(planned_hosts),
            max_join=strategy.max_join,
            max_leave=strategy.max_leave,
            grow_every=strategy.grow_every,
        )
        self._planned = strategy.planned_workers(planned_hosts)
        self._most_hosts = strategy.most_hosts(planned_hosts)
        self.roster = Roster(initial, strategy.processes_per_host, restarts=strategy.restarts)
        self._session = Session(self, loop, job, backend, strategy, self.roster, limits)
        self._wording = Wording(strategy, self.roster)
        rule = Exclusion(GrowingCooldown(*strategy.cooldown), exclusion, job)
        self._hosts = HostControl(self._session, rule, most=self._most_hosts)
        self._workers = self._hosts.workers
        self._offered: tuple[str, ...] = ()
        self._awaited = ""  # what was last said of whom it waits for, to begin
        self.driver_waits = False
        self._complete = False
        self._grown_at: float | None = None
        self._driver: DriverProcess | RestartingDriver | None = None
        self._restarts = restarts
        self._cause: Failure | None = None  # of the script's own, in a membership
        self._is_sure = False  # whether that follows from no other
        self._hanging: Hanging | None = None
        if hang_timeout:
            self._hanging = Hanging(loop, hang_timeout, self._session)
            self._session.closing.callback(self._hanging.close)

    @classmethod
    def of_job(
        cls,
        loop: AsyncioLoop,
        job: Supervisor,
        backend: Backend,
        spec: TrainingJobSpec,
        options: RunOptions,
        hosts: tuple[str, ...],
    ) -> ElasticController:
        """Make the controller of one attempt of a job.

        Args:
            loop: The supervisor's loop.
            job: The supervisor.
            backend: Where the hosts run.
            spec: The job as it was planned.
            options: What only the supervisor needs.
            hosts: Those that the attempt begins with.

        Raises:
            ConfigurationError: the strategy's own rule for failed hosts cannot be loaded.
        """
        strategy = spec.strategy
        assert isinstance(strategy, Elastic)  # whose driver this speaks to
        return cls(
            loop,
            job,
            backend,
            strategy,
            hosts,
            python=options.python,
            start_timeout=options.start_timeout,
            hang_timeout=spec.hang_timeout,
            planned_hosts=len(spec.hosts),
            restarts=sum(_is_start(event) for event in backend.record.events()) if strategy.restarts else 0,
            exclusion=load_policy(strategy.exclusion) if strategy.exclusion is not None else None,
        )

    @property
    def over(self) -> bool:
        """Whether it decides nothing any more: the job is complete, fails, or is being stopped."""
        return self._session.over

    # --- the course of the job ---

    def start(self) -> None:
        """Begin; the backend starts the first hosts."""
        self._session.later(self._start_timeout, self._start_is_over)
        if self._hanging is not None:
            self._hanging.start()
        self._session.note()
        source = sources.of_job(self._loop, self._strategy, self._backend)
        if source is not None:
            strategy = self._strategy
            places = self._session.places = self._wording.places = Places(
                source,
                self.roster.hosts,
                self._hosts,
                most=self._most_hosts,
                slots=strategy.slots or strategy.processes_per_host,
                readers=strategy.processes_per_host if local.has_pipes(self._backend.spec) else None,
            )
            self._session.closing.callback(places.close)
            places.start()

    def close(self) -> None:
        """Nothing is decided any more; the driver ends."""
        self._session.close()

    def _start_is_over(self) -> None:
        """Who has not come by now is not waited for."""
        if not self._session.state.has_met:
            if (late := self._wording.late(self._start_timeout)) is not None:
                self._job.say(late)
            self.offer(all_there=False)

    # --- what hosts say ---

    def host_event(self, event: Event) -> None:
        """Take an event of a host's toolkit."""
        if (told := self._telling.line(event)) is not None:
            self._job.say(told)
        host = self.roster.hosts.get(event.host)
        if self._complete and host is not None and event.kind == "host_ready":
            self._session.instruct(host.name, "finish")  # it was on its way when the others ended
        if self.over or host is None:
            return
        if self._hanging is not None:
            self._hanging.heed(event)
        worker = self.roster.workers.get(str(event.data.get("worker")))
        if event.kind == "data":
            self._workers.trains = True
        elif event.kind == "chaos_step":
            self._workers.injected.append(event.data.get("id"))
        elif event.kind == "failure":
            host.failure = Failure.from_dict(event.data)
        elif event.kind == "host_ready":
            host.address = str(event.data.get("address") or "")
            host.ports = tuple(int(port) for port in event.data.get("ports") or ())
            if self._driver is None:
                self._start_driver()
            self._hosts.is_up(host)
        elif event.kind == "worker_ready" and worker is not None:
            self._workers.take_ready(worker)
        elif event.kind == "worker_ended" and worker is not None:
            given, code = event.data.get("failure"), event.data.get("exit_code")
            code = int(code) if code is not None else 128 + int(event.data.get("signal") or signal.SIGKILL)
            failure = Failure.from_dict(given) if isinstance(given, dict) else None
            consequence = bool(event.data.get("consequence"))
            if self.roster.restarts and worker.state.has_place and not worker.leaves and not event.data.get("waited"):
                self._script_ended(worker, code, failure, consequence=consequence)
            else:
                if consequence:
                    self._session.consequences.add(worker.name)
                # Who was told to end has left, even if its script calls that a success.
                self._workers.ended(worker, code or (128 + signal.SIGTERM if worker.leaves else 0), failure)

    def _script_ended(self, worker: Worker, code: int, failure: Failure | None, *, consequence: bool) -> None:
        """The script of a worker that can start again has ended by itself."""
        if worker.state is WorkerState.RESTARTING:
            return  # it was told to meanwhile
        worker.ended_with = code
        if code == 0:
            self.tell_driver({"op": "done", "worker": worker.name})
            return
        if failure is not None:
            failure = dataclasses.replace(failure, rank=worker.rank)
            if self._cause is None or not (self._is_sure or consequence):
                self._cause, self._is_sure = failure, not consequence
            self._session.failures[worker.name] = failure
        self.tell_driver({"op": "failed", "worker": worker.name, "consequence": consequence})

    def host_ended(self, end: HostEnd) -> None:
        """A host's toolkit has ended."""
        self._hosts.ended(end)

    # --- the driver ---

    def _start_driver(self) -> None:
        """Start the driver: with the first host there is a network to meet in."""
        if isinstance(self._strategy, ElasticTorchDistributed):
            self._driver = RestartingDriver(
                self._loop,
                self,
                self._backend,
                strategy=self._strategy,
                limits=self._session.limits,
                roster=self.roster,
                restarts=self._restarts,
            )
            self._session.closing.callback(self._driver.close)
            return
        assert isinstance(self._strategy, ElasticHorovod)
        try:
            address, interface = self._backend.meeting_place()
            driver = self._driver = self._driver_type(
                self._loop,
                self,
                python=self._python,
                folder=self._backend.record.path,
                strategy=self._strategy,
                planned=self._planned,
                limits=self._session.limits,
                address=address,
                interface=interface,
            )
        except (OSError, FleetfitError) as error:
            self._session.fail_with(f"Horovod's elastic driver could not be started: {error}", Cause.LAUNCH)
            return

        self._backend.protected.add(driver.pid)
        self._session.closing.callback(driver.close)
        self._session.closing.callback(self._backend.protected.discard, driver.pid)

    @property
    def driver_pid(self) -> int | None:
        """The pid of Horovod's driver, while it runs."""
        return self._driver.pid if self._driver is not None else None

    def tell_driver(self, message: Message) -> None:
        """Tell the driver something, if there is one."""
        if self._driver is not None:
            self._driver.send(message)

    def from_driver(self, message: Message) -> None:
        """Take a message of the driver."""
        if self.over:
            return
        operation = message["op"]
        worker = self.roster.workers.get(str(message.get("worker")))
        if operation == "start" and worker is not None:
            self._workers.place(worker, message["environment"])
        elif operation == "restart" and worker is not None:
            self._workers.restart(worker, float(message["grace"]))
        elif operation == "end" and worker is not None:
            self._workers.end(worker, message.get("grace"))
        elif operation in ("waiting", "enough"):
            self.driver_waits = operation == "waiting"
        elif operation == "membership":
            self._membership(tuple(str(name) for name in message["workers"]), int(message["generation"]))
        elif operation == "too_few":
            self._too_few()
        elif operation == "finished":
            self.finished(str(message.get("error") or ""), blamed=bool(message.get("blamed")))

    def _membership(self, members: tuple[str, ...], generation: int) -> None:
        session, before = self._session, self.roster.members
        if self.roster.restarts and generation:
            reason = self._cause.summary() if self._cause is not None else ""
            self._job.event("restarted", generation=generation, size=len(members), reason=reason)
            self._job.say(f"all workers restart{f': {reason}' if reason else ''}")
        self._cause, self._is_sure = None, False
        if session.state is State.SHORT:
            self._job.say(f"{len(members)} workers are ready again: the training goes on.")
        is_first = not session.state.has_met
        session.move(TrainingEvent.MEETING)
        if before == members:
            return
        if len(members) > len(before) and before:
            self._grown_at = session.clock()
        self.roster.take_places(members)
        if session.places is not None and is_first:
            session.places.begun()
        joined = [name for name in members if name not in before]
        left = [name for name in before if name not in members]
        self._job.event(
            "resized", size=len(members), before=len(before), workers=list(members), joined=joined, left=left
        )
        self._hosts.keep_spares()
        if before:
            self._job.say(f"{len(before)} -> {len(members)} workers{deciding.changes(joined, left)}")
        self.offer()
        self._hosts.hurry()
        session.note()

    def _too_few(self) -> None:
        """The workers that are needed have not come within ``elastic_timeout``."""
        if awaited := self._job.await_hosts():  # it is not the training that has failed
            self._job.say(self._wording.another_attempt(awaited))
            return
        session = self._session
        unfit = {host.name: host.failure for host in self.roster.hosts.values() if host.failure is not None}
        failures = {**unfit, **session.failures}
        session.fail(self._wording.timed_out(session.limits, failures, has_met=session.state.has_met))

    def finished(self, error: str, *, blamed: bool = False) -> None:
        """End the training: it is complete, or has failed, as the workers say."""
        failure = deciding.outcome(self.roster, self._session.failures, error, self._session.consequences)
        if blamed and self._cause is not None:
            failure = dataclasses.replace(self._cause, hints=(*self._cause.hints, f"{error}."))
        if failure is not None:
            self._session.fail(failure)
            return
        self._job.event("phase", name="elastic_finished")
        self._complete = True
        self.close()
        for host in self.roster.present_hosts:
            self._session.instruct(host.name, "finish")
            if not host.up:
                self._backend.withdraw(host.name)  # nobody waits for one that may never come

    def driver_lost(self, log: str) -> None:
        """Fail the training, whose driver has ended by itself, with the end of the driver's log."""
        if not self.over:
            failure = deciding.failed("Horovod's elastic driver ended unexpectedly", Cause.LAUNCH)
            missing = "No module named 'horovod'" in log
            hints = (
                "Horovod is not installed: run `fleetfit install horovod`."
                if missing
                else "The end of the driver's log is below.",
            )
            self._session.fail(dataclasses.replace(failure, log_tail=log or None, hints=hints))

    def offer(self, *, all_there: bool = True) -> None:
        """Tell the driver who is there, unless the first ones are still coming."""
        session = self._session
        if session.over or self._driver is None:
            return
        now = session.clock()
        decision = deciding.decide(
            session.state,
            self.roster,
            session.limits,
            self._offered,
            session.places,
            now=now,
            grown_at=self._grown_at,
            all_there=all_there,
        )
        if decision.awaited is not None and sum(decision.awaited) < session.limits.first:
            text = self._wording.too_few_first(sum(decision.awaited), session.limits)
            if text != self._awaited:  # once until that is another
                self._awaited = text
                self._job.say(text)
        if decision.shortage and session.state is not State.SHORT:
            session.move(TrainingEvent.SHORTAGE)
            there = len(decision.workers if decision.workers is not None else self._offered)
            self._job.say(self._wording.too_few_left(there, session.limits))
        if decision.workers is not None:
            if not session.state.has_begun:
                session.move(TrainingEvent.BEGIN)
            self._offered = decision.workers
            self._driver.send({"op": "workers", "workers": list(decision.workers)})
        if decision.again_at is not None:
            session.later(max(0.1, decision.again_at - now), self.offer)

    # --- what clients and faults ask for ---

    def add_hosts(self, count: int) -> list[str]:
        """Start more hosts; see :meth:`estimators.supervisor.elastic.hosts.HostControl.add`."""
        return self._hosts.add(count)

    def remove_host(self, name: str) -> None:
        """Let a host leave; see :meth:`estimators.supervisor.elastic.hosts.HostControl.remove`."""
        self._hosts.remove(name)

    def interrupt(self, name: str, notice_s: float) -> None:
        """A spot interruption; see :meth:`estimators.supervisor.elastic.hosts.HostControl.interrupt`."""
        self._hosts.interrupt(name, notice_s)

    def lose_host(self, name: str) -> None:
        """A host is lost at once; see :meth:`estimators.supervisor.elastic.hosts.HostControl.lose`."""
        self._hosts.lose(name)

    def signal_worker(self, rank: int, number: int) -> None:
        """Send a signal to a rank; see :meth:`estimators.supervisor.elastic.workers.WorkerControl.signal`."""
        self._workers.signal(rank, number)


def _is_start(event: Event) -> bool:
    """Whether an event says that all workers have started."""
    return event.kind == "restarted" or (event.kind == "resized" and not event.data.get("before"))
