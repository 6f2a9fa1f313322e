"""The supervisor: the process that owns a running job and alone writes its record.

Notebook, command line and endpoint are its clients. ``--attached-fd`` ties it to a caller that waits: it pokes the
caller when there is something to read, and ends the job when the caller goes away. Whatever happens to it, nothing of
the job survives: its hosts notice the end of their lifeline.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from container import launchers
from container.contract.failures import Cause, Failure
from container.system.asyncio_loop import AsyncioLoop
from container.system.holding import hold
from container.system.loop import Timer
from estimators import backends
from estimators.backends.base import Backend, HostEnd, ManagedService, ServiceCallbacks
from estimators.backends.trees import checkpoints
from estimators.job.errors import ConfigurationError, RecordError
from estimators.job.failure_policy import EndedBy, Ending
from estimators.job.faults import Fault, Kill
from estimators.job.fleets import capabilities
from estimators.job.log_redaction import text_mask
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records import ranks
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.supervisor import finalize
from estimators.supervisor.attempt import Attempt
from estimators.supervisor.attempts import Attempts, Wait
from estimators.supervisor.clients import Clients
from estimators.supervisor.collecting import ProvenanceCollector
from estimators.supervisor.fault_injection import Disturber, Hosts
from estimators.supervisor.host_events import HostEvents
from estimators.supervisor.journal import Journal
from estimators.supervisor.lifecycle import TRANSITIONS, Happening, Stage
from estimators.supervisor.neighbours import with_neighbours
from estimators.supervisor.preemption import GangHosts
from estimators.supervisor.remote_status import Mirror
from estimators.supervisor.streams import HostStreams, longest_silence
from estimators.supervisor.turn import Turn

#: How long the supervisor stays for the provenance collector after the job's end, in seconds.
_PROVENANCE_TIMEOUT = 30.0
#: The same when its caller was killed: then nothing may be left two seconds later.
_ABANDONED_TIMEOUT = 1.0
#: How long the other hosts have after one was lost, in seconds.
_LOST_GRACE = 0.3
#: How long the hosts have to end after one failed before they are killed, in seconds. Theirs is 0.5 s.
_END_TIMEOUT = 1.5
#: How long the last lines are searched for metrics, and of a job that is ended at once, in seconds.
_METRICS_TIMEOUT = 10.0
_HURRIED_METRICS_TIMEOUT = 0.5
#: How long packing the outputs may take of a job whose time to save is over, in seconds.
_COLLECT_TIMEOUT = 10.0


class Supervisor:
    """Runs one job to its end.

    Args:
        loop: The loop that drives everything.
        record: The job's record, its lock held.
        umask: The caller's umask, for what scripts write.
        resume: Whether the job goes on that the record is of, as :func:`estimators.client.launch.resume` has noted
        there.
    """

    def __init__(self, loop: AsyncioLoop, record: JobRecord, umask: int = 0o022, *, resume: bool = False) -> None:
        self._loop = loop
        self._record = record
        request = record.read_request()
        self._job = TrainingJobSpec.from_request(request)
        self._options = RunOptions.from_json(record.options_file.read_text(encoding="utf-8"))
        status = record.stored_status() or statuses.new_status(request, time.time(), warnings=self._options.warnings)
        self.clients = Clients(loop, stop=self.stop, gone=self._caller_gone, elastic=lambda: self._attempt.elastic)
        self._journal = Journal(
            record,
            self._job,
            status,
            mask=text_mask(request),
            changed=self.clients.notify,
            soon=loop.soon,
            failed=self._record_failed,
            diverged=lambda event, text: self._events.diverged(event, text),
        )
        self._journal.keep(supervisor_pid=os.getpid())
        self._mirror = Mirror(record, self._journal)
        self._attempts = self._attempts_of(resume=resume)
        self._attempt = self._new_attempt(self._job)
        backend = backends.load(self._options.backend)
        self._events = HostEvents(
            self._journal,
            self._attempts,
            attempt=lambda: self._attempt,
            disturber=lambda: self._disturber,
            mirror=self._mirror,
            managed=issubclass(backend, ManagedService),
            diverged=self._diverged if self._options.on_nan == "fail" else None,
        )
        self._streams = HostStreams(self._events.take)
        self._stage = Stage.RUNNING
        self._over = asyncio.Event()
        self._stopped_as: tuple[SecondaryStatus, str] | None = None  # how the job ends that was stopped
        self._late_stop: tuple[SecondaryStatus, str] | None = None  # asked for as an attempt failed
        self._hurry = False
        self._interrupted: set[str] = set()  # hosts of an elastic job for which another one comes
        self._next_timer: Timer | None = None  # for the next attempt
        self._wait_until = 0.0
        self._run_timer: Timer | None = None  # max_run
        self._waits_since: float | None = None  # for hosts
        self._turn: Turn | None = None  # its place in a queue
        self._linger = _PROVENANCE_TIMEOUT
        self._timers: list[Timer] = []
        self._backend: Backend = backend(
            loop,
            record,
            self._job,
            self._options,
            ServiceCallbacks(
                secondary_status=self._secondary,
                output=self._streams.feed,
                host_ended=self._host_ended,
                interrupted=self.interrupted,
                failed=self._fail,
                outputs_collected=self._collected,
                note=self._mirror.note,
                described=self._mirror.described,
                attempt=self._restarted_there,
                over=self._over_there,
                limit=self._limit_reached,
            ),
        )
        self._backend.umask = umask
        self._journal.search_metrics(loop, self._backend.protected, self._warn_of_metrics)
        self._provenance = ProvenanceCollector(loop, record.path, self._backend.protected, self._journal.warn)
        hosts: Hosts = GangHosts(loop, self._backend, self)
        if launchers.of(self._job.strategy).membership_changes:
            from estimators.supervisor.elastic.disturbed import ElasticHosts

            hosts = ElasticHosts(lambda: self._attempt.elastic, self)
        self._hosts = hosts
        self._disturber = Disturber(
            loop,
            hosts,
            chaos=self._options.chaos,
            market=self._options.spot_market if self._job.spot else None,
            names=self._job.hosts,
            rank_of=ranks.numbering(self._job),
            tell=self._fault_told,
        )
        loop.on_signal(signal.SIGTERM, self._sigterm)
        loop.on_signal(signal.SIGHUP, lambda: None)
        loop.on_signal(signal.SIGINT, lambda: None)

    def _new_attempt(self, spec: TrainingJobSpec) -> Attempt:
        return Attempt(self._loop, spec, checkpoints(self._record, self._job))

    def _attempts_of(self, *, resume: bool) -> Attempts:
        """The attempts to come; for a job that goes on, after those that there were."""
        policy = self._options.failure_policy.with_retries(
            self._job.retry.max_attempts if self._job.retry is not None else None
        )
        if self._job.strategy is not None and policy.min_hosts is None:
            policy = dataclasses.replace(policy, min_hosts=self._job.strategy.fewest_hosts)
        if not resume:
            return Attempts(policy, self._job.hosts)
        own = self._journal.own
        number = int(own.get("attempt") or 0)
        earlier = [Ending.from_dict(values) for values in own.get("attempts") or []]
        self._journal.start_attempt(number)
        return Attempts(policy, self._job.hosts, earlier=earlier, number=number)

    # --- clients ---

    def take_head_start(self, fd: int) -> None:
        """Go on with what the caller has begun."""
        os.set_inheritable(fd, False)
        self._backend.handed = socket.socket(fileno=fd)

    def _caller_gone(self) -> None:
        """The caller that waited is gone: nobody wants the job any more."""
        if self._stage is not Stage.OVER:
            self._linger = _ABANDONED_TIMEOUT
            self._stop_as(SecondaryStatus.STOPPED, "The process that waited for the job has ended.")
            self._end_now()

    # --- the course of the job ---

    def start(self) -> None:
        """Start the job."""
        self._journal.write_status()
        self._journal.event("phase", name="supervisor_started")
        if self._attempts.number:
            self._journal.event("resume", attempts=self._attempts.to_list())
        if self._job.spot and self._job.stopping.max_wait_s and not self._is_managed:
            self._timers.append(self._loop.call_later(self._job.stopping.max_wait_s, self._max_wait_reached))
        if self._options.queue is not None and not self._mirror.resumed:
            self._turn = Turn(
                self._loop,
                self._record,
                self._job,
                self._options,
                self._wait_for_turn,
                self._turn_comes,
                self._make_room,
            )
            try:
                self._turn.begin()
            except RecordError as error:
                self._record_failed(error)
            return
        self._begin()

    def _wait_for_turn(self, text: str) -> None:
        self._secondary(SecondaryStatus.PENDING.value, text)

    def _turn_comes(self) -> None:
        if self._stage is Stage.WAITING:
            self._start_next()
        else:
            self._begin()

    def _make_room(self) -> bool:
        """End the attempt for a more urgent job; another one follows when it is the job's turn again."""
        if self._stage is not Stage.RUNNING or not self._backend.running or self._attempts.taken:
            return False  # it is ending, or about to start
        self.tell("preempted_in_queue", self.hosts[0], "the job makes room for a more urgent job in its queue")
        self.preempt(self.hosts[0], self._options.stop_grace)
        return True

    def _begin(self) -> None:
        self._start_attempt(self._attempts.number)
        if self._mirror.resumed:
            self._attempt.reported = self._mirror.recall()
        if not self._stage.is_ending and not self._mirror.resumed:
            self._provenance.start_soon()
            self._watch_hosts()

    def _start_attempt(self, attempt: int) -> None:
        if launchers.of(self._job.strategy).membership_changes:
            from estimators.supervisor.elastic.controller import ElasticController

            try:
                self._attempt.elastic = ElasticController.of_job(
                    self._loop, self, self._backend, self._job, self._options, self._attempt.spec.hosts
                )
            except ConfigurationError as error:
                self._fail(Failure(cause=Cause.CONFIGURATION, message=str(error)))
                return
            self._number_ranks(self._attempt.elastic.roster.rank_of)
            self._attempt.elastic.start()
        hold("supervisor.before_hosts")
        if not self._stage.is_ending:
            self._backend.start(attempt)

    def _number_ranks(self, rank_of: ranks.Numbering) -> None:
        self._disturber.rank_of = rank_of
        self._journal.number_ranks(rank_of)

    def _watch_hosts(self) -> None:
        """A toolkit that shows no sign of life was stopped, or its machine is out of breath: nobody waits for ever."""
        limit = longest_silence(
            self._job.hang_timeout, self._options.start_timeout, elastic=self._attempt.elastic is not None
        )
        silent = [
            host
            for host in self._streams.silent(limit, only_beating=not capabilities(self._options.backend).heartbeats)
            if host not in self._attempt.ended
        ]
        if silent and self._attempt.elastic is not None and not self._attempt.elastic.over:
            self._backend.kill_host(silent[0])
        elif silent and self._attempt.failure is None:
            self._fail(
                Failure(
                    cause=Cause.TIMEOUT,
                    message=f"the host's training process has given no sign of life for {limit:g} s.",
                    host=silent[0],
                    process="toolkit",
                    hints=("The process was stopped (SIGSTOP), or the machine is overloaded.",),
                )
            )
        self._loop.call_later(min(limit / 4, 5.0), self._watch_hosts)

    async def run(self) -> None:
        """Run until the job is over and its record complete."""
        await self._over.wait()

    def stop(self, grace: float | None, reason: str) -> None:
        """Stop the job, giving the script ``grace`` seconds to save (None: what the options say)."""
        if self._stage is Stage.OVER:
            return
        if self._is_managed and self._backend.running:
            self._backend.stop()  # whether and how it stops, its status there will say
            return
        self._stop_as(SecondaryStatus.STOPPED, f"Stopped: {reason}.")
        self._stop_within(self._options.stop_grace if grace is None else grace)

    def _stop_within(self, seconds: float) -> None:
        if self._next_timer is not None and seconds > 0:
            # No host runs: what the last attempt left is kept.
            self._next_timer.cancel()
            self._next_timer = None
            self._timers.append(self._loop.call_later(_COLLECT_TIMEOUT, self._end_now))
            self._backend.collect_outputs()
            return
        collecting = self._attempt.everyone_ended
        if seconds <= 0 or not (self._backend.running or collecting):
            self._end_now()
            return
        self.tell_to_stop()  # to be told twice would end them at once
        self._timers.append(self._loop.call_later(seconds, self._grace_over))

    def _grace_over(self) -> None:
        """The script had its time: end it, and keep what it has saved."""
        if self._stage is Stage.OVER:
            return
        if self._backend.running:
            self._backend.end_now()
        self._timers.append(self._loop.call_later(_COLLECT_TIMEOUT, self._end_now))

    def _stop_as(self, final: SecondaryStatus, message: str) -> None:
        if self._stage is Stage.FAILING:
            self._late_stop = self._late_stop or (final, message)
        elif self._stopped_as is None and self._stage is not Stage.OVER:
            self._attempt.close()
            self._move(Happening.STOP)
            self._stopped_as = (final, message)
            self._secondary(SecondaryStatus.STOPPING.value, message)

    def _max_run_reached(self) -> None:
        seconds = self._attempt.spec.stopping.max_run_s
        self._stop_as(SecondaryStatus.MAX_RUNTIME_EXCEEDED, f"The job was stopped after max_run, which is {seconds} s.")
        self._stop_within(self._options.stop_grace)

    def _limit_reached(self, text: str) -> None:
        self._stop_as(SecondaryStatus.MAX_RUNTIME_EXCEEDED, text)
        self._stop_within(self._options.stop_grace)

    def _max_wait_reached(self) -> None:
        seconds = self._job.stopping.max_wait_s
        self._stop_as(
            SecondaryStatus.MAX_WAIT_TIME_EXCEEDED,
            f"The job was stopped after max_wait, which is {seconds} s and includes the job's waits.",
        )
        self._stop_within(self._options.stop_grace)

    def _end_now(self) -> None:
        if self._stage is Stage.OVER:
            return
        self._hurry = True
        running = self._backend.running
        self._backend.end_now()
        if not running:
            self._finish()  # it had not come to starting hosts, or they have all ended

    def _fail(self, failure: Failure) -> None:
        """The job cannot go on."""
        if self._stage is Stage.OVER:
            return
        if self._attempt.failure is None:
            self._attempt.failure = failure
        self._attempt.close()
        between = self._stage is Stage.WAITING
        self._move(Happening.FAILURE)
        running = self._backend.running
        self._backend.end_now()
        if between:
            self._finish()
        elif not running:  # unless the end of the last host has led here, from which more follows
            self._attempt.later(0.0, self._finish)

    def _move(self, happening: Happening) -> None:
        self._stage = TRANSITIONS.following(self._stage, happening)

    # --- hosts ---

    def _diverged(self, failure: Failure) -> None:
        """Fail for a metric that is not a number, unless the job is being stopped."""
        if self._stopped_as is not None:
            return
        if self._backend.running or self._stage is Stage.WAITING:
            self._fail(failure)
        else:  # it is ending: this is how
            self._attempt.failure = self._attempt.failure or failure

    def _warn_of_metrics(self, message: str) -> None:
        self._journal.warn(message)
        self.say(f"warning: {message}")

    def _host_ended(self, end: HostEnd) -> None:
        if self._stage is Stage.OVER:
            return
        self._streams.finish(end.host)
        self._attempt.ended[end.host] = end
        if self._attempt.elastic is not None:
            self._attempt.elastic.host_ended(end)
            self._replace_interrupted(end.host)
            if not self._attempt.elastic.over:
                return  # a host less is no failure of the job
        if end.host in self._attempts.removed:
            lost = Failure(cause=Cause.HOST_LOST, message="the host is gone.", host=end.host)
            end = dataclasses.replace(end, failure=lost)
        if end.failure is not None and (
            self._attempt.failure is None or self._attempt.failure.cause is Cause.HOST_LOST
        ):
            self._attempt.failure = end.failure
            # A killed toolkit ends nothing any more, and one that has not met the others is not missed by them.
            self._attempt.later(_LOST_GRACE, self._backend.end_now)
        if self._attempt.everyone_ended:
            self._all_hosts_ended()
        elif self._stage.is_ending and not self._backend.running:
            self._finish()  # the others were never started
        elif end.exit_code != 0 and not (self._attempt.is_bounded or self._stage.is_stopping or self._attempts.taken):
            # The others end by themselves, since the hosts are connected; this bounds it.
            self._attempt.is_bounded = True
            self._attempt.later(_END_TIMEOUT, self._backend.end_now)

    def interrupted(self, host: str, notice_s: float) -> None:
        """The place that a host is from will take it; another one can be had at once, and joins when it is gone."""
        self._hosts.interrupt(host, notice_s, 0.0)
        if self._attempt.elastic is not None:
            self._interrupted.add(host)
            self._loop.call_later(notice_s, lambda: self._replace_interrupted(host))

    def _replace_interrupted(self, host: str) -> None:
        """Ask for another host, once: when the interrupted one has left, or its time is over."""
        if host in self._interrupted:
            self._interrupted.discard(host)
            self._hosts.return_host(host)

    # --- what an elastic membership tells; see estimators.supervisor.elastic.members.ElasticJob ---

    def event(self, kind: str, **data: Any) -> None:
        """Put an event into the record."""
        self._journal.event(kind, **data)

    def say(self, text: str) -> None:
        """Put a line of the supervisor's own into the log."""
        self._journal.say(self._attempt.spec.hosts[0], text)

    def fail_job(self, failure: Failure) -> None:
        """The job cannot go on."""
        self._fail(failure)

    def preempt(self, host: str, notice_s: float) -> None:
        """All that train lose their hosts: they save within the notice, and another attempt follows."""
        self._attempt.close()
        self._attempts.taken.append(host)
        self.tell_to_stop()
        self.in_attempt(notice_s, lambda: self.end_lost(host))

    def await_hosts(self) -> list[str]:
        """Too few are left: if hosts were taken for a time, end the attempt, and let another one follow with them."""
        now = time.monotonic()
        awaited = [host for host, back in self._attempts.fleet.gone.items() if now < back < math.inf]
        if awaited:
            self._attempt.close()
            self._attempts.taken += awaited
            running = self._backend.running
            self._backend.end_now()
            if not running:
                self._attempt.later(0.0, self._all_hosts_ended)
        return awaited

    def note_hosts(self, hosts: list[dict[str, Any]]) -> None:
        """Keep the membership with the status."""
        self._journal.keep(hosts=hosts)
        self._journal.write_status()

    def _all_hosts_ended(self) -> None:
        failed = self._attempt.has_failed
        if self._attempt.elastic is not None:  # hosts come and go, unless those that went had all that trained
            failed = failed and bool(self._attempts.taken)
        if not self._stage.is_stopping and failed and self._attempt.failure is None and not self._attempts.taken:
            self._attempt.failure = self._attempt.reported or self._attempt.unexplained()
        if not self._stage.is_stopping and (self._attempt.failure is not None or failed):
            outcome = self._attempt_over()
            if isinstance(outcome, Failure):
                self._attempt.failure = outcome
            elif self._late_stop is None:
                self._await_next(outcome)
                return
            else:  # another attempt was to follow, and is not wanted
                self._move(Happening.RETRY)
                self._stop_as(*self._late_stop)
        if self._hurry:
            self._finish()
            return
        if not self._stage.is_stopping:
            # Of a job that failed as well: what it has left may say why, and hours of training may be in it.
            self._secondary(SecondaryStatus.UPLOADING.value, "")
        if self._attempt.failure is not None:
            self._move(Happening.FAILURE)
        self._move(Happening.COLLECT)
        self._backend.collect_outputs()

    # --- attempts ---

    def _attempt_over(self) -> Wait | Failure:
        """What follows an attempt that did not end well."""
        self._attempt.cancel()
        if self._run_timer is not None:
            self._run_timer.cancel()
            self._run_timer = None
        self._disturber.attempt_ended()
        self._attempts.progressed |= self._attempt.has_saved
        if self._attempt.failure is not None:
            self._attempt.failure = self._journal.masked(self._attempt.failure)
        outcome = self._attempts.over(self._attempt.failure, time.monotonic())
        self._journal.keep(attempts=self._attempts.to_list())
        return outcome

    def _await_next(self, wait: Wait) -> None:
        """Another attempt follows, when its time has come."""
        now = time.monotonic()
        preempted = wait.ending is not None and wait.ending.kind is EndedBy.PREEMPTION
        reason = wait.ending.what() if wait.ending is not None else ""
        if self._attempt.failure is not None and not preempted:
            reason = self._attempt.failure.summary()
        self._secondary((SecondaryStatus.INTERRUPTED if preempted else SecondaryStatus.RESTARTING).value, reason)
        seconds = max(0.0, wait.until - now)
        pause = f" in {seconds:.1f} s" if seconds else ""
        self.tell(
            "restart",
            self._attempt.spec.hosts[0],
            f"attempt {self._attempts.number} is over ({reason}); the next one begins{pause}",
            reason=reason,
            pause_s=round(seconds, 3),
        )
        self._wait_until = wait.until
        self._move(Happening.RETRY)
        self._next_timer = self._loop.call_later(seconds, self._start_next)
        if self._turn is not None:
            try:
                self._turn.again()
            except RecordError as error:
                self._record_failed(error)

    def _start_next(self) -> None:
        """Another attempt, on the hosts that are there, with other ports and a new rendezvous."""
        if self._stage is not Stage.WAITING or self._next_timer is None:
            return
        if self._turn is not None and not self._turn.has_come:
            return  # it is called when the job's turn comes
        self._next_timer.cancel()
        wait = self._attempts.wait(now := time.monotonic())
        if isinstance(wait, Failure):
            self._next_timer = None
            self._attempt.failure = wait
            self._move(Happening.FAILURE)
            self._move(Happening.COLLECT)
            self._backend.collect_outputs()
            return
        if (until := max(wait.until, self._wait_until)) > now:
            self._next_timer = self._loop.call_later(until - now, self._start_next)
            return
        self._next_timer = None
        self._move(Happening.RESTART)
        for host in [host for host, back in self._attempts.fleet.gone.items() if back <= now]:
            self._attempts.fleet = self._attempts.fleet.returned(host)
            self.tell("returned", host, f"{host} is back", target=host)
        hosts = self._attempts.begin(now)
        others = hosts != self._attempt.spec.hosts or self._attempt.elastic is not None
        self._attempt = self._new_attempt(self._job.with_hosts(hosts) if others else self._attempt.spec)
        if others:
            self._backend.use(hosts)
            self._number_ranks(ranks.numbering(self._attempt.spec))
        attempt = self._attempts.number
        self._journal.start_attempt(attempt)
        self._journal.keep(attempt=attempt)
        self._secondary(SecondaryStatus.RESTARTING.value, f"Attempt {attempt} on {', '.join(hosts)}")
        self._streams.forget()
        self._start_attempt(attempt)

    # --- who may disturb it: see estimators.supervisor.preemption.PreemptedJob ---

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts of this attempt."""
        return self._attempt.spec.hosts

    @property
    def attempts(self) -> Attempts:
        """The attempts, with the hosts that there are for them."""
        return self._attempts

    @property
    def waits(self) -> bool:
        """Whether the next attempt's time has not come."""
        return self._stage is Stage.WAITING

    @property
    def ends(self) -> bool:
        """Whether the job is over or about to be: nothing more can be taken from it."""
        return self._stage is Stage.OVER or self._stage.is_stopping

    def is_preparing(self) -> bool:
        """Whether the hosts of an attempt are about to be started."""
        return (
            not (self._stage.is_ending or self._backend.running)
            and self._stage is not Stage.WAITING
            and len(self._attempt.ended) < len(self._attempt.spec.hosts)
        )

    def runs_on(self, host: str) -> bool:
        """Whether a host of the attempt runs."""
        return self._backend.running and host in self._attempt.spec.hosts and host not in self._attempt.ended

    def host_of(self, rank: int) -> str | None:
        """Where a rank runs."""
        return self._attempt.ranks.get(rank)

    def tell_to_stop(self) -> None:
        """Let all ranks save and end, once."""
        if not self._attempt.told_to_stop:
            self._attempt.told_to_stop = True
            self._backend.stop()

    def in_attempt(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something in a while, unless the attempt is over before."""
        self._attempt.later(seconds, action)

    def end_lost(self, host: str) -> None:
        """Kill a host, and then those that have missed it."""
        if host not in self._attempt.ended:
            self._backend.kill_host(host)
            self.in_attempt(_LOST_GRACE, self._backend.end_now)

    def start_next(self) -> None:
        """Start the next attempt if its time has come and there are hosts for it."""
        self._start_next()

    def _fault_told(self, fault: Fault, data: dict[str, Any]) -> None:
        host = self._attempt.ranks.get(fault.rank) if isinstance(fault, Kill) else getattr(fault, "host", None)
        self.tell("chaos", host or self._attempt.spec.hosts[0], f"chaos: {fault}", **data)

    def tell(self, kind: str, host: str, text: str, **data: Any) -> None:
        """An event, which people see in the live log too."""
        self._journal.event(kind, **data)
        self._journal.say(host, text)

    def _collected(self, failure: Failure | None) -> None:
        if failure is not None and self._stopped_as is None and self._attempt.failure is None:
            self._attempt.failure = failure
        elif failure is not None:
            self._journal.warn(failure.message)
        self._finish()

    # --- jobs on a managed service ---

    @property
    def _is_managed(self) -> bool:
        return isinstance(self._backend, ManagedService)

    def _restarted_there(self, number: int) -> None:
        self._streams.forget()
        self._attempt.reported = None
        self._mirror.restarted(number)

    def _over_there(self, there: Mapping[str, Any], failure: Failure | None) -> None:
        self._streams.finish()
        self._mirror.last = there
        self._attempt.failure = (self._attempt.reported or failure) if failure is not None else None
        self._finish()

    def _sigterm(self) -> None:
        if self._is_managed and self._backend.running:
            self._let_go()  # this machine goes down, say: no reason to end a job on others
        else:
            self.stop(None, "the supervisor got SIGTERM")

    def _let_go(self) -> None:
        """Follow the job no longer: it goes on where it is, and whoever attaches to it follows it again."""
        if self._stage is Stage.OVER:
            return
        self._move(Happening.FINISH)
        self._linger = 0.0
        self._backend.cleanup()
        self._journal.close()
        self.clients.close(let_caller_wait=True)
        self._over.set()

    # --- the end ---

    def _finish(self) -> None:
        """Everything of the job has ended: write the last status and let the caller go."""
        if self._stage is Stage.OVER:
            return
        self._move(Happening.FINISH)
        self._attempt.cancel()
        for timer in (*self._timers, self._run_timer, self._next_timer):
            if timer is not None:
                timer.cancel()
        for fault in self._disturber.end():
            self._journal.warn(f"chaos: {fault} was not injected: the job ended first.")
        self._loop.end_descendants(spare=self._backend.protected)
        self._backend.cleanup()
        if self._turn is not None:
            self._turn.end()
        for warning in self._misplaced_models():
            self._journal.warn(warning)
            self.say(f"warning: {warning}")
        self._journal.finish(_HURRIED_METRICS_TIMEOUT if self._hurry else _METRICS_TIMEOUT)
        if self._attempt.failure is None and self._stopped_as is None and self._mirror.last is None:
            for warning in self._journal.unmatched():
                self._journal.warn(warning)
                self.say(f"warning: {warning}")
        self._journal.event("phase", name="job_ended")
        self._journal.close()
        if self._attempt.failure is not None:
            self._attempt.failure = self._journal.masked(with_neighbours(self._attempt.failure, self._record))
        finalize.write_ending(
            self._journal,
            self._record,
            self._attempt.spec,
            model=self._events.model,
            there=self._mirror.last,
            stopped_as=self._stopped_as,
            failure=self._attempt.failure,
        )
        if self._job.spot:
            finalize.bill(self._journal, self._options.spot_market, self._attempts.clock)
        hold("supervisor.before_commit")
        self._journal.write_status(last=True)
        self.clients.close()
        self._over.set()

    def _misplaced_models(self) -> list[str]:
        """Say where a model is that nobody keeps, of a job that has none."""
        if self._attempt.failure is not None or self._stopped_as is not None:
            return []
        found = self._events.misplaced
        if self._is_managed and len(found) < len(self._attempt.spec.hosts):
            return []  # where the outputs are out of sight, a host that tells of none may have saved the model
        if self._events.model is not None or finalize.archive_of(self._attempt.spec) is not None:
            return []
        return finalize.misplaced(self._record, found)

    async def linger(self) -> None:
        """Wait, bounded, for the provenance collector; the caller has its result already."""
        late = await self._provenance.wait(self._linger)
        self._loop.end_descendants(spare=self._backend.protected - late)
        if self._linger == _PROVENANCE_TIMEOUT:
            finalize.tidy()

    # --- the record ---

    def _secondary(self, name: str, message: str) -> None:
        """Take a step of the secondary status, unless the job is being stopped or over."""
        secondary = SecondaryStatus(name)
        if (
            self._mirror.begun
            or self._stage is Stage.OVER
            or (self._stage.is_stopping and secondary is not SecondaryStatus.STOPPING)
        ):
            return
        self._journal.step(secondary, message)
        self._show_wait(secondary, message)
        self._journal.write_status()
        if secondary is SecondaryStatus.TRAINING:
            self._hosts_start()

    def _show_wait(self, secondary: SecondaryStatus, message: str) -> None:
        """Show what hosts are waited for, and that they are there."""
        host = self._attempt.spec.hosts[0]
        if secondary is SecondaryStatus.RESTARTING:
            self._waits_since = None
        if message and secondary in (SecondaryStatus.STARTING, SecondaryStatus.PENDING, SecondaryStatus.TRAINING):
            self._waits_since = self._waits_since or time.monotonic()
            self._journal.show_progress(host, message)
        elif self._waits_since is not None and secondary is SecondaryStatus.TRAINING:
            self._journal.say(host, f"starting, after {time.monotonic() - self._waits_since:.0f} s of waiting")
            self._waits_since = None

    def _hosts_start(self) -> None:
        now = time.monotonic()
        self._attempts.running(now)
        self._provenance.hosts_start()
        self._disturber.attempt_began(self._attempts.number)
        limit = self._job.stopping.max_run_s
        if limit and self._run_timer is None:
            # As on SageMaker, neither the time to bring the inputs counts nor a wait for hosts.
            left = max(0.0, limit - self._attempts.clock.ran(now))
            self._run_timer = self._loop.call_later(left, self._max_run_reached)

    def _record_failed(self, error: RecordError) -> None:
        """A job that cannot be recorded is ended, since going on would lose what it says; one elsewhere goes on."""
        if self._mirror.begun:
            print(f"fleetfit: {error}; the job is not followed any more.", file=sys.stderr)
            self._let_go()
            return
        if self._stage is not Stage.OVER and self._attempt.failure is None:
            self._loop.call_later(
                0.0,
                lambda: self._fail(
                    Failure(
                        cause=Cause.CONFIGURATION,
                        message=str(error),
                        hints=(
                            "`fleetfit clean` shows how much space finished jobs use; `fleetfit clean --free 5G` "
                            "removes the oldest jobs.",
                        ),
                    )
                ),
            )
