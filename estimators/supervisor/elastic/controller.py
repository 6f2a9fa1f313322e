"""An elastic job's membership, in its supervisor: hosts and workers (:mod:`.members`) that come and go.

Horovod's driver is told which workers there are, and says which get a place; it learns of a new one only when that has
imported all it needs, so that the others go on training until then.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable
from typing import Any

from container.contract import variables
from container.contract.failures import Cause, Failure
from container.contract.membership import natural_key
from container.contract.messages import Message, encode
from container.contract.strategies import ElasticHorovod
from container.contract.wire import Event
from container.system.loop import Loop, Timer
from estimators.backends import local
from estimators.backends.base import Backend, HostEnd
from estimators.job.errors import FleetfitError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.elastic_events import Telling
from estimators.supervisor.attempt import TERMINATED
from estimators.supervisor.elastic.driver import Driver
from estimators.supervisor.elastic.exclusion import Exclusion, load_policy
from estimators.supervisor.elastic.hanging import Hanging
from estimators.supervisor.elastic.members import ElasticJob, Host, HostState, Roster, Worker, WorkerState, changes
from estimators.supervisor.elastic.places import Places
from estimators.supervisor.elastic.policy import ExclusionPolicy, GrowingCooldown, Limits, Offer, next_offer
from estimators.supervisor.elastic.sources import of_job

#: How long a worker of a leaving host may take to notice that it has no place any more, in seconds, before it is ended.
LEAVE_TIMEOUT = 30.0
#: How long the others may take to meet after a member was lost, in seconds, until changes are told again.
_SETTLE_S = 2.0
#: How long after a spare host has joined the next one is started, in seconds: its imports would slow that down.
_SPARE_PAUSE_S = 3.0
#: How often workers may end before any of them had a place, until the job fails.
_HOPELESS = 3


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
        exclusion: Decides how long a host is left out after a failure, over the strategy's cooldown.
    """

    def __init__(
        self,
        loop: Loop,
        job: ElasticJob,
        backend: Backend,
        strategy: ElasticHorovod,
        initial: tuple[str, ...],
        *,
        python: str,
        start_timeout: float,
        hang_timeout: float | None = None,
        planned_hosts: int | None = None,
        exclusion: ExclusionPolicy | None = None,
    ) -> None:
        self._loop = loop
        self._job = job
        self._backend = backend
        self._strategy = strategy
        self._python = python
        self._start_timeout = start_timeout
        self._telling = Telling()
        self._exclusion = Exclusion(GrowingCooldown(*strategy.cooldown), exclusion, job.say)
        planned_hosts = planned_hosts or len(initial)
        self.limits = Limits(
            first=strategy.first_workers(len(initial)),
            least=strategy.least_workers,
            most=strategy.most_workers(planned_hosts),
            max_join=strategy.max_join,
            max_leave=strategy.max_leave,
            grow_every=strategy.grow_every,
        )
        self._first_hosts = len(initial)
        self._planned = strategy.planned_workers(planned_hosts)
        self._most_hosts = strategy.most_hosts(planned_hosts)
        self.roster = Roster(initial, strategy.processes_per_host)
        self._places: Places | None = None
        self._owed: list[Host] = []  # lost hosts in whose place another one comes when there is a place for it
        self._offered: tuple[str, ...] = ()
        self._begun = False  # whether the driver has been told of the first workers
        self._met = False  # whether there has been a membership
        self._awaited = ""  # what was last said of whom it waits for, to begin
        self._training = False  # whether the script has said that it trains
        self._settling = False
        self._waiting = False  # whether too few are left to go on with
        self._short = False  # whether the driver waits for enough workers, no longer than it may
        self._hopeless = 0
        self._grown_at: float | None = None
        self._spares_from = 0.0  # when spare hosts may be started again, by the monotonic clock
        self._failures: dict[str, Failure] = {}  # by worker, of those that have failed last
        self._timers: list[Timer] = []
        self._driver: Driver | None = None
        self._hanging: Hanging | None = None
        if hang_timeout:
            self._hanging = Hanging(
                loop,
                hang_timeout,
                self.roster,
                waits=lambda: self._short or not self._met,
                driver=lambda: self._driver.pid if self._driver is not None else None,
                ask=lambda host: self._instruct(host, "dump"),
                fail=self._fail_with,
            )
        #: Whether it decides nothing any more: the job is complete, fails, or is being stopped.
        self.over = False

    @classmethod
    def of_job(
        cls,
        loop: Loop,
        job: ElasticJob,
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
        assert isinstance(strategy, ElasticHorovod)  # whose driver this speaks to
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
            exclusion=load_policy(strategy.exclusion) if strategy.exclusion is not None else None,
        )

    # --- the course of the job ---

    def start(self) -> None:
        """Begin; the backend starts the first hosts."""
        self._later(self._start_timeout, self._start_is_over)
        if self._hanging is not None:
            self._hanging.start()
        self._note()
        source = of_job(self._loop, self._strategy, self._backend)
        if source is not None:
            self._places = Places(
                source,
                self.roster.hosts,
                self,
                most=self._most_hosts,
                slots=self._strategy.slots or self._strategy.processes_per_host,
                readers=self._strategy.processes_per_host if local.has_pipes(self._backend.spec) else None,
            )
            self._places.start()

    def _start_driver(self) -> None:
        """Start the driver: with the first host there is a network to meet in."""
        try:
            address, interface = self._backend.meeting_place()
            self._driver = Driver(
                self._loop,
                python=self._python,
                folder=self._backend.record.path,
                strategy=self._strategy,
                planned=self._planned,
                limits=self.limits,
                address=address,
                interface=interface,
                received=self._from_driver,
                ended=self._driver_lost,
            )
        except (OSError, FleetfitError) as error:
            self._fail(f"Horovod's elastic driver could not be started: {error}", Cause.LAUNCH)
            return
        self._backend.protected.add(self._driver.pid)

    def close(self) -> None:
        """Nothing is decided any more; the driver ends."""
        self.over = True
        if self._places is not None:
            self._places.close()
        if self._hanging is not None:
            self._hanging.close()
        for timer in self._timers:
            timer.cancel()
        if self._driver is not None:
            self._driver.close()
            self._backend.protected.discard(self._driver.pid)

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers = [timer for timer in self._timers if not timer.cancelled]

        def call() -> None:
            timer.cancel()
            if not self.over:
                callback()

        timer = self._loop.call_later(seconds, call)
        self._timers.append(timer)

    def _start_is_over(self) -> None:
        """Who has not come by now is not waited for."""
        if not self._met:
            late = [
                host.name for host in self.roster.hosts.values() if host.state is HostState.STARTING and not host.up
            ]
            if self._places is not None and not self._places.known:
                self._job.say(
                    f"{self._places.title} has named no host within {self._start_timeout:g} s; waiting for it."
                )
            elif late:
                self._job.say(f"{', '.join(late)} did not come up within {self._start_timeout:g} s.")
            self._offer(all_there=False)

    # --- what hosts say ---

    def host_event(self, event: Event) -> None:
        """Take an event of a host's toolkit."""
        if (told := self._telling.line(event)) is not None:
            self._job.say(told)
        if self.over:
            return
        host = self.roster.hosts.get(event.host)
        if host is None:
            return
        if self._hanging is not None:
            self._hanging.heed(event)
        if event.kind == "data":
            self._training = True
        elif event.kind == "host_ready":
            if self._driver is None:
                self._start_driver()
            host.up = True
            self._begin(host)
            self._finish_leaving(host)  # it may have been told to leave when it could not hear it
            self._keep_spares()
        elif event.kind == "worker_ready":
            worker = self.roster.workers.get(str(event.data.get("worker")))
            if worker is not None and worker.state is WorkerState.PREPARING:
                self._take_ready(worker)
        elif event.kind == "worker_ended":
            worker = self.roster.workers.get(str(event.data.get("worker")))
            if worker is not None:
                failure = event.data.get("failure")
                code = event.data.get("exit_code")
                number = event.data.get("signal")
                self._worker_ended(
                    worker,
                    int(code) if code is not None else 128 + int(number or signal.SIGKILL),
                    Failure.from_dict(failure) if isinstance(failure, dict) else None,
                )

    # --- what its places ask for; see estimators.supervisor.elastic.places.Moves ---

    def start_host(self, slots: int, place: str) -> str:
        """Start a host at a place, or have a spare one stand for it."""
        return self._add(slots=slots, place=place)

    def locate(self, host: str, place: str) -> None:
        """Tell the backend."""
        self._backend.locate(host, place)

    def notice(self, host: str, seconds: float) -> None:
        """As if its provider had said it."""
        self._job.interrupted(host, seconds)

    def places_known(self) -> None:
        """Those that come up may begin, and who has been missed may be replaced."""
        for host in list(self.roster.hosts.values()):
            self._begin(host)
        owed, self._owed = self._owed, []
        for host in owed:
            self._replace(host)
        self._keep_spares()
        self._offer()

    def say(self, text: str) -> None:
        """Put a line into the log."""
        self._job.say(text)

    def no_places(self, problem: str) -> None:
        """Fail the job."""
        self._fail(f"nobody says which hosts there are: {problem}", Cause.LAUNCH)

    # --- hosts and workers ---

    def _begin(self, host: Host) -> None:
        """Have a host prepare its workers, when it is up and it is known for whom it stands."""
        if host.state is HostState.STARTING and host.up and not self._stands_by(host):
            host.state = HostState.READY
            for slot in range(host.slots):
                self._prepare(host, slot)

    def _stands_by(self, host: Host) -> bool:
        """Return whether it is not known yet for whom a host stands."""
        return self._places is not None and self._places.awaits(host.name)

    def host_ended(self, end: HostEnd) -> None:
        """A host's toolkit has ended."""
        host = self.roster.hosts.get(end.host)
        if host is None or host.state is HostState.GONE:
            return
        expected = host.state is HostState.LEAVING
        host.state = HostState.GONE
        if self.over:
            return
        told = end.exit_code == 128 + signal.SIGTERM
        lost = end.failure or Failure(
            cause=Cause.HOST_LOST,
            message=TERMINATED if told else "the host's training process ended.",
            host=host.name,
            exit_code=end.exit_code,
        )
        if not host.up and not expected:  # it has never come: the next one waits, as after a failure
            self._exclude(host)
        for worker in host.workers.values():
            if worker.state is not WorkerState.ENDED:
                self._worker_ended(worker, 128 + signal.SIGKILL, None if expected else lost, of_host=True)
        if host.name in self.roster.leaving:
            self.roster.leaving.remove(host.name)
        self._job.event("host_left" if expected else "host_lost", name=host.name, reason=lost.message)
        self._job.say(f"{host.name} {'has left' if expected else f'was lost: {lost.message}'}")
        if not expected and host.replace:
            wait = 0.0 if self.roster.spare is not None else max(0.0, host.excluded_until - time.monotonic())
            if not math.isinf(wait):
                self._later(wait, lambda: self._replace(host))
        self._note()
        self._offer()

    def _replace(self, lost: Host) -> None:
        """Another host in the place of one that was lost, under a name of its own."""
        if len(self.roster.taking_part) >= self._most_hosts:
            return
        places = self._places
        if places is not None and not places.may_replace(lost.name):
            return
        if self.roster.spare is None and self._free_places < 1:
            self._owed.append(lost)
            return
        name = self._add(slots=lost.slots, place=places.place_of(lost.name) if places is not None else None)
        if places is not None:
            places.replaced(lost.name, name)

    @property
    def _free_places(self) -> float:
        """How many more hosts may be asked for, as far as places go."""
        if self._places is None or self._places.supply is None:
            return math.inf
        return len(self._places.supply) - len(self.roster.running)

    def _keep_spares(self) -> None:
        """Start as many spare hosts as there are to be, once the first ones train."""
        if not self._met or self.over or time.monotonic() < self._spares_from:
            return
        lacking = self._strategy.spares - sum(self.roster.hosts[name].spare for name in self.roster.running)
        for _ in range(int(min(lacking, max(0, self._free_places)))):
            self._start_host(spare=True, slots=self._strategy.processes_per_host)

    def _prepare(self, host: Host, slot: int) -> None:
        if self.over or host.state is not HostState.READY:
            return
        worker = self.roster.new_worker(host, slot)
        self._instruct(host.name, "prepare", worker=worker.name, slots=host.slots, warm=self._strategy.warm)
        if not self._strategy.warm:
            self._take_ready(worker)

    def _take_ready(self, worker: Worker) -> None:
        """A worker can take a place; it may be the only one left soon, so its host has to have what was saved."""

        def ready() -> None:
            if worker.state is WorkerState.PREPARING:
                worker.state = WorkerState.READY
                self._offer()

        host = self.roster.hosts[worker.host]
        placed = any(other.state is WorkerState.PLACED for other in host.workers.values())
        if self._met and not self.over and not placed:
            self._backend.refresh_checkpoints(host.name, ready)
        else:
            ready()

    def _worker_ended(self, worker: Worker, code: int, failure: Failure | None, *, of_host: bool = False) -> None:
        if worker.state is WorkerState.ENDED:
            return
        before, worker.state, worker.ended_with = worker.state, WorkerState.ENDED, code
        host = self.roster.hosts[worker.host]
        if self._driver is not None and before is WorkerState.PLACED:
            self._driver.send({"op": "ended", "worker": worker.name, "code": code})
        placed = before is WorkerState.PLACED and worker.name in self.roster.members
        if placed and code == 0:
            return  # the others are about to end as well
        if placed:
            self._settle()
        if host.state is HostState.LEAVING:
            self._finish_leaving(host)
            self._count_members()
            self._offer()
            return
        if before is WorkerState.PLACED and not placed:
            # It had no place in the last membership, and left as it was told to.
            self._again(host, worker.slot)
            return
        seconds = self._exclude(host)
        if failure is not None:
            self._failures[worker.name] = failure
        if not placed:
            self._hopeless += 1
            if self._hopeless >= _HOPELESS and not self._met:
                early = " and without hvd.init()" if code == 0 and before is WorkerState.PREPARING else ""
                self._fail_with(failure or self._failure(f"its workers end before they train{early}"))
                return
        self._job.event(
            "worker_lost",
            worker=worker.name,
            name=host.name,
            exit_code=code,
            rank=worker.rank,
            reason=failure.summary() if failure is not None else "",
        )
        if not of_host:
            ever = math.isinf(seconds)
            self._job.event("host_excluded", name=host.name, seconds=None if ever else round(seconds, 3))
            self._job.say(
                f"a worker of {host.name} was lost{f' ({failure.summary()})' if failure else ''}; nothing new starts "
                f"there {'any more' if ever else f'for {seconds:.1f} s'}."
            )
            self._again(host, worker.slot)
        self._count_members()
        self._offer()

    def _count_members(self) -> None:
        """A training that waits for others ends when nobody is left that has its state."""
        if self._waiting and not self.over and not self.roster.members_left:
            self._later(0.0, self._end_in_vain)  # not before what has just ended is told

    def _tell_who_is_missing(self, there: int) -> None:
        """A training with too few workers waits for others, as Horovod's driver has it."""
        if not self._waiting and there < self.limits.least and self.roster.members_left:
            self._waiting = True
            self._job.say(
                f"{there} of at least {self.limits.least} workers left: the training waits for others, "
                f"{self._strategy.elastic_timeout:g} s at the most.{self._missing(' Missing: {}.')}"
            )

    def _missing(self, text: str) -> str:
        """Whose workers are missing, put into a text; "" if that is nobody's."""
        names = [f"{host.name}{self._place_of(host.name)}" for host in self.roster.missing]
        return text.format(", ".join(names)) if names else ""

    def _place_of(self, host: str) -> str:
        if self._places is None:
            return ""
        name = self._places.last_place_of(host)
        if self._places.awaits(host):
            return f", for which {self._places.title} has no name"
        return f" ({name})" if name is not None else ""

    def _tell_who_is_awaited(self, there: int, coming: int) -> None:
        """The first workers are not all there, nor on their way: say for whom it waits, once until that is another."""
        if there + coming >= self.limits.first:
            return
        text = (
            f"the training begins with {self.limits.first} workers ({self._first_is}), and there are {there + coming}: "
            f"it waits for others, {self._strategy.elastic_timeout:g} s at the most."
        )
        if self._places is not None and self._places.decide:
            title = self._places.title
            text += f" {title[0].upper()}{title[1:]} names {', '.join(self._places.names) or 'no host'}."
        elif self.roster.missing:
            text += self._missing(" Missing: {}.")
        if text != self._awaited:
            self._awaited = text
            self._job.say(text)

    @property
    def _first_is(self) -> str:
        """What has set the number of the first workers."""
        if self._strategy.workers:
            return f"workers={self._strategy.workers}"
        return f"instance_count={self._first_hosts}"

    @property
    def _least_is(self) -> str:
        strategy = self._strategy
        return f"min_workers={strategy.min_workers}" if strategy.min_workers else f"min_hosts={strategy.min_hosts}"

    def _end_in_vain(self) -> None:
        if self._waiting and not self.roster.members_left:
            self._finished("")

    def _exclude(self, host: Host) -> float:
        """Leave a host out after a failure, for so many seconds."""
        now = time.monotonic()
        place = self._places.place_of(host.name) if self._places is not None else None
        host.excluded_until = self._exclusion.failed(place or host.name, now)
        return host.excluded_until - now

    def _settle(self) -> None:
        """A member is lost: the others meet anew by themselves, and must not be told to once more."""
        self._settling = True

        def over() -> None:
            self._settling = False
            self._offer()

        self._later(_SETTLE_S, over)

    def _again(self, host: Host, slot: int) -> None:
        def prepare() -> None:
            if host.workers[slot].state is WorkerState.ENDED:
                self._prepare(host, slot)

        if not math.isinf(host.excluded_until):
            self._later(max(0.05, host.excluded_until - time.monotonic()), prepare)

    # --- what the driver says ---

    def _from_driver(self, message: Message) -> None:
        if self.over:
            return
        operation = message["op"]
        if operation == "start":
            worker = self.roster.workers.get(str(message["worker"]))
            if worker is not None and worker.state is WorkerState.READY:
                worker.state = WorkerState.PLACED
                late = {variables.ELASTIC_LATE: "1"} if self._training else {}
                environment = {**message["environment"], **late}
                self._instruct(worker.host, "place", worker=worker.name, environment=environment)
        elif operation == "end":
            worker = self.roster.workers.get(str(message["worker"]))
            if worker is not None and worker.state is not WorkerState.ENDED:
                self._instruct(worker.host, "end_worker", worker=worker.name)
        elif operation in ("waiting", "enough"):
            self._short = operation == "waiting"
        elif operation == "membership":
            self._membership(tuple(str(name) for name in message["workers"]))
        elif operation == "too_few":
            self._too_few()
        elif operation == "finished":
            self._finished(str(message.get("error") or ""))

    def _membership(self, members: tuple[str, ...]) -> None:
        before = self.roster.members
        if self._waiting:
            self._job.say(f"{len(members)} workers are there again: the training goes on.")
        self._settling = self._waiting = False
        if before == members:
            return
        if len(members) > len(before) and before:
            self._grown_at = time.monotonic()
        self.roster.take_places(members)
        if self._places is not None and not self._met:
            self._places.begun()
        self._met = True
        joined = [name for name in members if name not in before]
        left = [name for name in before if name not in members]
        self._job.event(
            "resized", size=len(members), before=len(before), workers=list(members), joined=joined, left=left
        )
        self._keep_spares()
        if before:
            self._job.say(f"{len(before)} -> {len(members)} workers{changes(joined, left)}")
        self._offer()
        for host in list(self.roster.hosts.values()):
            if host.state is HostState.LEAVING:
                self._later(LEAVE_TIMEOUT, lambda host=host: self._end_leaving(host))  # type: ignore[misc]
        self._note()

    def _too_few(self) -> None:
        """The workers that are needed have not come within ``elastic_timeout``."""
        strategy = self._strategy
        if awaited := self._job.await_hosts():  # it is not the training that has failed
            self._job.say(
                f"too few workers for {strategy.elastic_timeout:g} s (elastic_timeout): another attempt begins when "
                f"{', '.join(awaited)} {'is' if len(awaited) == 1 else 'are'} back."
            )
            return
        coming = sum(worker.state is WorkerState.PREPARING for worker in self.roster.workers.values())
        wanted = f"of at least {self.limits.least} ({self._least_is})"
        if not self._met:
            wanted = f"of {self.limits.first} to begin with ({self._first_is})"
        self._fail_with(
            Failure(
                cause=Cause.TIMEOUT,
                message=(
                    f"elastic training: too few workers for {strategy.elastic_timeout:g} s (elastic_timeout): "
                    f"{len(self.roster.there)} {wanted}"
                    f"{f'; {coming} more had not come to hvd.init()' if coming else ''}"
                    f"{self._missing('; missing: {}')}."
                ),
                hints=self._last_failure,
            )
        )

    def _finished(self, error: str) -> None:
        codes = [self.roster.workers[name].ended_with for name in self.roster.members if name in self.roster.workers]
        if any(code == 0 for code in codes) and not error:
            self.over = True
            self._job.event("phase", name="elastic_finished")
            for host in self.roster.hosts.values():
                if host.state is not HostState.GONE:
                    self._instruct(host.name, "finish")
            self.close()
            return
        failures = [self._failures[name] for name in self.roster.members if name in self._failures]
        if not failures:
            failures = list(self._failures.values())[-1:]
        if error and not error.startswith("no worker is left"):
            # What Horovod says of its own limits is the reason; why it came to that is the hint.
            self._fail_with(dataclasses.replace(self._failure(error), hints=self._last_failure))
        else:
            self._fail_with(failures[0] if failures else self._failure(error or "every worker ended with an error"))

    @property
    def _last_failure(self) -> tuple[str, ...]:
        """The hint that names it; none where no worker has failed."""
        return tuple(
            f"the last failure of a worker: {failure.summary()}" for failure in list(self._failures.values())[-1:]
        )

    def _driver_lost(self, log: str) -> None:
        if not self.over:
            failure = self._failure("Horovod's elastic driver ended unexpectedly")
            missing = "No module named 'horovod'" in log
            hints = ("`fleetfit install horovod` builds it." if missing else "Its last words are below.",)
            self._fail_with(dataclasses.replace(failure, cause=Cause.LAUNCH, log_tail=log or None, hints=hints))

    # --- what is decided here ---

    def _offer(self, *, all_there: bool = True) -> None:
        """Tell the driver who is there, unless the first ones are still coming."""
        if self.over or self._driver is None:
            return
        alive = self.roster.alive
        if not self._begun:
            coming = [
                host
                for host in self.roster.hosts.values()
                if host.state is HostState.STARTING and not host.spare and not self._stands_by(host)
            ]
            preparing = [worker for worker in self.roster.workers.values() if worker.state is WorkerState.PREPARING]
            if self._places is not None and not self._places.known:
                if self._places.answered:
                    self._tell_who_is_awaited(0, 0)
                return
            if all_there and (coming or preparing):
                on_their_way = len(preparing) + sum(host.slots for host in coming)
                self._tell_who_is_awaited(len(self.roster.there), on_their_way)
                return
            alive.sort(key=lambda worker: natural_key(worker.name))  # rank 0 is on algo-1, whoever was ready first
        now = time.monotonic()
        current = [name for name in self._offered if self.roster.workers[name].state is not WorkerState.ENDED]
        if self._settling and len(current) >= self.limits.least:
            return
        leaving = self.roster.leaving
        offer = self._next_offer(current, alive, leaving, now)
        if self._begun and len(offer.workers) < self.limits.least:
            # Who will be taken away trains on until then: to wait for others is of no use to it.
            leaving = [name for name in leaving if not self.roster.hosts[name].noticed]
            offer = self._next_offer(current, alive, leaving, now)
        if not self._begun and len(offer.workers) < self.limits.first:
            self._tell_who_is_awaited(len(offer.workers), 0)
            return
        if self._begun:
            self._tell_who_is_missing(len(offer.workers))
        if offer.workers != self._offered:
            self._begun = True
            self._offered = offer.workers
            self._driver.send({"op": "workers", "workers": list(offer.workers)})
        if offer.again_at is not None:
            self._later(max(0.1, offer.again_at - now), self._offer)

    def _next_offer(self, current: list[str], alive: list[Worker], leaving: list[str], now: float) -> Offer:
        placed = [(worker.name, worker.host) for worker in alive]
        return next_offer(current, placed, leaving, self.limits, now=now, grown_at=self._grown_at)

    def add_hosts(self, count: int) -> list[str]:
        """Start more hosts.

        Returns:
            Their names.

        Raises:
            ValueError: there would be more than the job may have.
        """
        if len(self.roster.taking_part) + count > self._most_hosts:
            raise ValueError(
                f"{len(self.roster.taking_part)} hosts and {count} more would be over max_hosts={self._most_hosts}; "
                "ElasticHorovod(max_hosts=…) sets how many there may be."
            )
        if self._places is not None:
            self._check_places(self._places, count)
        return [self._add() for _ in range(count)]

    def _check_places(self, places: Places, count: int) -> None:
        """Refuse hosts for which there is no place."""
        if places.decide and self._backend.locates:
            raise ValueError(f"{places.title} says which hosts there are: another one joins when it is named there.")
        spare = sum(host.spare and host.state is HostState.READY for host in self.roster.hosts.values())
        leaving = len(self.roster.taking_part) - len(self.roster.staying)
        if places.supply is not None and count > self._free_places + spare + leaving:
            has = f"{len(places.supply)} place{'' if len(places.supply) == 1 else 's'}"
            raise ValueError(
                f"{places.title} has {has} ({', '.join(places.supply) or 'none'}), and the job has "
                f"{len(self.roster.running)} of them; there is none for {count} more."
            )

    def _add(self, slots: int | None = None, place: str | None = None) -> str:
        """A spare host takes part, or another one is started, where discovery says if it does."""
        spare = self.roster.spare
        if spare is not None and slots in (None, spare.slots):
            spare.spare = False
            self._job.event("host_added", name=spare.name, spare=True)
            self._job.say(f"{spare.name}, a spare host, joins")
            for worker in spare.workers.values():
                if worker.state is WorkerState.READY:  # since long, perhaps
                    worker.state = WorkerState.PREPARING
                    self._take_ready(worker)
            self._spares_from = time.monotonic() + _SPARE_PAUSE_S
            self._later(_SPARE_PAUSE_S + 0.1, self._keep_spares)
            return spare.name
        return self._start_host(spare=False, slots=slots or self._strategy.processes_per_host, place=place)

    def _start_host(self, *, spare: bool, slots: int, place: str | None = None) -> str:
        name = self._backend.next_host()
        self.roster.hosts[name] = Host(name, slots=slots, spare=spare)
        if not spare:
            self._job.event("host_added", name=name)
            self._job.say(f"{name} is being added")
        if place is not None:
            self._backend.locate(name, place)
        self._backend.add_host(name)
        self._note()
        return name

    def remove_host(self, name: str) -> None:
        """Let a host leave: the others go on without it from their next commit on.

        Raises:
            ValueError: there is no such host, or too few would be left.
        """
        host = self.roster.present(name)
        if host.state is HostState.LEAVING:
            return
        left = [other for other in self.roster.staying if other != name]
        if len(left) * self._strategy.processes_per_host < self.limits.least:
            raise ValueError(
                f"without {name} {len(left)} of the at least {self._strategy.min_hosts} hosts would be left that the "
                "training needs; add_hosts() first, or stop() the job."
            )
        self._begin_without(host)
        self.leave(host)

    def _begin_without(self, host: Host) -> None:
        """Who asks a host to leave before the training has begun does not mean that it is to be waited for."""
        if not self._begun and host.state is not HostState.LEAVING:
            first = max(self.limits.least, self.limits.first - host.slots)
            self.limits = dataclasses.replace(self.limits, first=first)

    def interrupt(self, name: str, notice_s: float) -> None:
        """A spot interruption: the host leaves within ``notice_s`` seconds, or is killed then.

        If nobody trains on the others, the whole job has the notice.

        Raises:
            ValueError: there is no such host.
        """
        host = self.roster.present(name)
        self._job.event("notice", name=name, seconds=notice_s)
        self._job.say(f"{name} has notice: it goes in {notice_s:g} s")
        if self._met and not self.roster.trains_without(name):
            self._job.preempt(name, notice_s)
            return
        host.noticed = True
        self._begin_without(host)
        self.leave(host)

        def take() -> None:
            if host.state is not HostState.GONE:
                self._backend.kill_host(name)

        self._later(notice_s, take)

    def lose_host(self, name: str) -> None:
        """A host is lost at once, and not replaced by itself.

        Raises:
            ValueError: there is no such host.
        """
        host = self.roster.present(name)
        host.replace = False
        self._backend.kill_host(name)

    def signal_worker(self, rank: int, number: int) -> None:
        """Send a signal to the worker that has a rank now.

        Raises:
            ValueError: there is none.
        """
        worker = self.roster.with_rank(rank)
        if worker is None:
            raise ValueError(f"there is no rank {rank}; there are {len(self.roster.members)} workers.")
        self._instruct(worker.host, "signal", worker=worker.name, number=number)

    def leave(self, host: Host) -> None:
        """Let a host leave, if it is not about to."""
        if host.state is HostState.LEAVING:
            return
        host.state = HostState.LEAVING
        host.replace = False
        self.roster.leaving.append(host.name)
        self._job.event("host_leaving", name=host.name)
        self._note()
        self._offer()
        self._finish_leaving(host)
        if not host.up:
            self._backend.withdraw(host.name)

    def stay(self, host: Host) -> bool:
        """Keep a host that is about to leave and is wanted again, if its workers are still members."""
        inside = [worker for worker in host.workers.values() if worker.name in self.roster.members]
        if host.state is not HostState.LEAVING or not any(worker.state is WorkerState.PLACED for worker in inside):
            return False
        host.state = HostState.READY
        host.replace = True
        self.roster.leaving.remove(host.name)
        self._job.event("host_staying", name=host.name)
        self._note()
        for worker in inside:
            if worker.state is WorkerState.ENDED:
                self._again(host, worker.slot)
        self._offer()
        return True

    def _finish_leaving(self, host: Host) -> None:
        if host.state is not HostState.LEAVING:
            return
        inside = [worker for worker in host.workers.values() if worker.state is WorkerState.PLACED]
        if not inside:
            self._instruct(host.name, "finish")

    def _end_leaving(self, host: Host) -> None:
        """Its workers have no place any more and do not notice: end them."""
        if host.state is HostState.LEAVING:
            for worker in host.workers.values():
                if worker.state is WorkerState.PLACED and worker.name not in self.roster.members:
                    self._instruct(host.name, "end_worker", worker=worker.name)

    # --- words ---

    def _instruct(self, host: str, operation: str, **values: Any) -> None:
        self._backend.say(host, encode({"op": operation, **values}))

    def _failure(self, message: str, cause: Cause = Cause.PROCESS) -> Failure:
        return Failure(cause=cause, message=f"elastic training: {message}.")

    def _fail(self, message: str, cause: Cause) -> None:
        self._fail_with(self._failure(message, cause))

    def _fail_with(self, failure: Failure) -> None:
        self.close()
        self._job.fail_job(failure)

    def _note(self) -> None:
        self._job.note_hosts(self.roster.to_list())
