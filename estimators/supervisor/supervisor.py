"""Run one job. The supervisor is the process that owns a running job and is the only writer of its record.

The notebook, the command line and the endpoint are the supervisor's clients. ``--attached-fd`` connects the supervisor
to a caller that waits for the job. The supervisor notifies the caller when the record has new content, and terminates
the job when the caller ends. No process of the job outlives the supervisor. When the connection to the supervisor
closes, each host terminates its processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from container import launchers
from container.contract import diverging, wire
from container.contract.failures import Cause, Failure
from container.system.asyncio_loop import AsyncioLoop
from container.system.holding import hold
from container.system.loop import Timer
from estimators import backends
from estimators.backends import events as told
from estimators.backends.base import HostEnd
from estimators.backends.trees import checkpoints
from estimators.job.errors import ConfigurationError, RecordError
from estimators.job.failure_policy import Ending
from estimators.job.faults import Fault, Kill
from estimators.job.fleets import capabilities
from estimators.job.log_redaction import mask_failure, text_mask
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.supervisor import events, finalize
from estimators.supervisor.attempt import Attempt
from estimators.supervisor.attempts import Attempts
from estimators.supervisor.clients import Clients
from estimators.supervisor.collecting import ProvenanceCollector
from estimators.supervisor.events import Action, Do, Event
from estimators.supervisor.fault_injection import FaultInjector, FaultyHosts
from estimators.supervisor.host_events import HostEvents
from estimators.supervisor.journal import Journal
from estimators.supervisor.machine import JobMachine
from estimators.supervisor.neighbours import with_neighbours
from estimators.supervisor.preemption import GangHosts
from estimators.supervisor.queue_place import QueuePlace
from estimators.supervisor.remote_status import Mirror
from estimators.supervisor.streams import HostStreams, longest_silence

#: How long the supervisor waits for the provenance collector after the job's end, in seconds.
_PROVENANCE_TIMEOUT = 30.0
#: How long the supervisor waits for the provenance collector if the caller was killed, in seconds. Two seconds after
#: the caller's end, no process may be left.
_ABANDONED_TIMEOUT = 1.0


class Supervisor:
    """The supervisor of one job, which runs the job to its end.

    All events of the job are put into one queue (:meth:`post`). The :class:`~estimators.supervisor.machine.JobMachine`
    decides, for each event, which actions follow. The actions are performed before the next event is handled.

    Args:
        loop: The loop that runs all callbacks.
        record: The job's record. The caller holds the record's lock.
        umask: The caller's umask, for the files that scripts write.
        resume: Whether to resume the record's job instead of starting a new one. In this case,
            :func:`estimators.client.launch.resume` has prepared the record.

    Attributes:
        clients: The clients of the job.
        machine: The state machine of the job.
        attempt: The state of the current attempt.
    """

    def __init__(self, loop: AsyncioLoop, record: JobRecord, umask: int = 0o022, *, resume: bool = False) -> None:
        self.loop = loop
        self._record = record
        self._queue: deque[Event] = deque()
        self._is_deciding = True  # events wait until :meth:`run`
        self._timer: Timer | None = None  # for the machine's next deadline
        self._over = asyncio.Event()
        request = record.read_request()
        self._job = TrainingJobSpec.from_request(request)
        self._options = JobOptions.from_dict(record.read_options())
        status = record.stored_status() or statuses.new_status(request, time.time(), warnings=self._options.warnings)
        self._mask = text_mask(request)
        self.clients = Clients(loop, self)
        self._journal = Journal(self, record, self._job, status, mask=self._mask)
        self._journal.keep(supervisor_pid=os.getpid())
        self._mirror = Mirror(record, self._journal)
        self._is_managed = capabilities(self._options.backend).managed
        self._elastic = launchers.of(self._job.strategy).membership_changes
        self.machine = self._new_machine(resume=resume)
        self.attempt = self._new_attempt(self._job)
        self._streams = HostStreams()
        self._interrupted: set[str] = set()  # hosts of an elastic job to replace once they have left
        self._waits_since: float | None = None  # the time since which the job has waited for hosts
        self._place: QueuePlace | None = None
        self._queueing: asyncio.Task[None] | None = None
        self._yields: asyncio.Event | None = None  # set when the attempt that makes room for another job has ended
        self._linger = _PROVENANCE_TIMEOUT
        self._watch: asyncio.Task[None] | None = None
        self._backend = backends.create(loop, record, self._job, self._options, self)
        self._backend.umask = umask
        self._provenance = ProvenanceCollector(loop, record.path, self.protected, self._journal)
        hosts: FaultyHosts = GangHosts(self._backend, self)
        if self._elastic:
            from estimators.supervisor.elastic.fault_hosts import ElasticHosts

            hosts = ElasticHosts(self)
        self._hosts = hosts
        self._injector = FaultInjector(
            loop,
            hosts,
            faults=self._options.faults,
            market=self._options.spot_market if self._job.spot else None,
            names=self._job.hosts,
            supervisor=self,
        )
        self._events = HostEvents(
            self._journal, self.machine, self._injector, mirror=self._mirror, managed=self._is_managed
        )
        loop.add_signal_handler(signal.SIGTERM, self._sigterm)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        loop.add_signal_handler(signal.SIGINT, lambda: None)

    def _new_machine(self, *, resume: bool) -> JobMachine:
        stopping = self._job.stopping
        return JobMachine(
            self._attempts_of(resume=resume),
            stop_grace_s=self._options.stop_grace,
            max_run_s=stopping.max_run_s,
            max_wait_s=stopping.max_wait_s if self._job.spot and not self._is_managed else None,
            managed=self._is_managed,
            elastic=self._elastic,
            queued=self._options.queue is not None and not self._mirror.resumed,
            mask=self._mask,
        )

    def _new_attempt(self, spec: TrainingJobSpec) -> Attempt:
        return Attempt(spec, checkpoints(self._record, self._job))

    def _attempts_of(self, *, resume: bool) -> Attempts:
        """Return the counter of the job's attempts. For a resumed job, the numbering continues after the earlier
        attempts.
        """
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

    # --- the course of the job ---

    async def run(self) -> None:
        """Run the job until it is over and its record is complete."""
        self._journal.write_status()
        self._journal.event("phase", name="supervisor_started")
        if self.machine.attempts.number:
            self._journal.event("resume", attempts=self.machine.attempts.to_list())
        self._queue.appendleft(events.PlainEvent.STARTED)
        self._decide()
        if not self.machine.has_turn:
            self._place = QueuePlace(self._record, self._job, self._options)
            self._queueing = self.loop.start(self._queue_up(self._place))
        await self._over.wait()

    def post(self, event: Event) -> None:
        """Queue an event for the state machine. The event is handled at once, or after the actions that are being
        performed.
        """
        self._queue.append(event)
        if not self._is_deciding:
            self._decide()

    def _decide(self) -> None:
        self._is_deciding = True
        while self._queue and not self.machine.over:
            event = self._queue.popleft()
            for action in self.machine.handle(event, time.monotonic(), running=self._backend.running):
                self._perform(action)
        self._is_deciding = False
        if self._timer is not None:
            self._timer.cancel()
        if self.machine.over:
            self._over.set()
        elif (deadline := self.machine.next_deadline()) is not None:
            seconds = max(0.0, deadline - time.monotonic())
            self._timer = self.loop.call_later(seconds, lambda: self.post(events.PlainEvent.TIME_UP))

    async def _queue_up(self, place: QueuePlace) -> None:
        """Wait for the job's turn in its queue. Interrupt a running attempt whenever a job with a higher priority needs
        the resources.
        """
        try:
            while True:
                async for text in place.wait():
                    self._secondary(SecondaryStatus.PENDING.value, text)
                self.post(events.PlainEvent.TURN_CAME)
                if not self._options.preemptible:
                    return
                await place.wanted()
                while not self.machine.may_make_room(self._backend.running):
                    await place.wanted()
                yields = self._yields = asyncio.Event()
                host = self.attempt.spec.hosts[0]
                self.tell("preempted_in_queue", host, "the job makes room for a more urgent job in its queue")
                self.preempt(host, self._options.stop_grace)
                await yields.wait()
        except RecordError as error:
            self.record_failed(error)

    def _perform(self, action: Action) -> None:
        """Perform an action of the state machine."""
        match action:
            case Do.CLOSE_MEMBERSHIP:
                self.attempt.close()
            case Do.STOP_HOSTS:
                self._backend.stop()
            case Do.END_HOSTS:
                self._backend.end_now()
            case Do.HOSTS_STARTED:
                self._provenance.hosts_start()
                self._injector.attempt_began(self.machine.attempts.number)
            case Do.ATTEMPT_OVER:
                self._injector.attempt_ended()
            case Do.KEEP_ATTEMPTS:
                self._journal.keep(attempts=self.machine.attempts.to_list())
            case Do.QUEUE_AGAIN if self._yields is not None:
                self.machine.has_turn = False
                self._yields.set()
                self._yields = None
            case Do.COLLECT:
                self._backend.collect_outputs()
            case Do.FINISH:
                self._finish()
            case Do.LET_GO:
                self._linger = 0.0
                self._backend.cleanup()
                self._journal.close()
                self.clients.close(let_caller_wait=True)
            case events.Begin():
                self._begin_attempt(action)
            case events.KillHost():
                self._backend.kill_host(action.host)
            case events.Show():
                self._show(action.status, action.message)
            case events.Tell():
                self.tell(action.kind, action.host, action.text, **action.data)
            case events.Warn():
                self._journal.warn(action.message)

    # --- attempts ---

    def _begin_attempt(self, begin: events.Begin) -> None:
        if self._watch is None:
            self._start_attempt(begin.number)
            if self._mirror.resumed:
                self.machine.reported = self._mirror.recall()
            elif not self._queue:  # the attempt has not failed at once
                self._provenance.start_soon()
                self._watch = self.loop.start(self._watch_hosts())
            return
        # A retry uses the hosts that are available now, new ports and a new rendezvous.
        others = begin.hosts != self.attempt.spec.hosts or self._elastic
        self.attempt = self._new_attempt(self._job.with_hosts(begin.hosts) if others else self.attempt.spec)
        if others:
            self._backend.use(begin.hosts)
        self._journal.start_attempt(begin.number)
        self._journal.keep(attempt=begin.number)
        self._show(SecondaryStatus.RESTARTING, f"Attempt {begin.number} on {', '.join(begin.hosts)}")
        self._streams.forget()
        self._start_attempt(begin.number)

    def _start_attempt(self, number: int) -> None:
        if self._elastic:
            from estimators.supervisor.elastic.controller import ElasticController

            try:
                self.attempt.elastic = ElasticController(
                    self.loop, self, self._backend, self._job, self._options, self.attempt.spec.hosts
                )
            except ConfigurationError as error:
                self.fail_job(Failure(cause=Cause.CONFIGURATION, message=str(error)))
                return
            self.attempt.elastic.start()
        hold("supervisor.before_hosts")
        self._backend.start(number)

    async def _watch_hosts(self) -> None:
        """React to hosts that have been silent for too long. In an elastic job, kill the silent host. Otherwise, fail
        the job.

        A host is silent if its process was suspended (SIGSTOP) or its machine is overloaded.
        """
        while True:
            elastic = self.attempt.elastic
            limit = longest_silence(self._job.hang_timeout, self._options.start_timeout, elastic=elastic is not None)
            await asyncio.sleep(min(limit / 4, 5.0))
            silent = [
                host
                for host in self._streams.silent(limit, only_beating=not capabilities(self._options.backend).heartbeats)
                if host not in self.machine.ended
            ]
            if silent and elastic is not None and not elastic.over:
                self._backend.kill_host(silent[0])
            elif silent and self.machine.failure is None:
                self.fail_job(
                    Failure(
                        cause=Cause.TIMEOUT,
                        message=f"the host's training process has given no sign of life for {limit:g} s.",
                        host=silent[0],
                        process="toolkit",
                        hints=("The process was stopped (SIGSTOP), or the machine is overloaded.",),
                    )
                )

    def put_nowait(self, event: told.BackendEvent) -> None:
        """Handle an event of the backend."""
        match event:
            case told.OutputRead():
                self._take(self._streams.feed(event.host, event.data), event.time_ns)
            case told.StatusTold():
                self._secondary(event.status, event.message)
            case HostEnd():
                self._host_ended(event)
            case told.HostNoticed():
                self.interrupted(event.host, event.seconds)
            case told.AttemptFailed():
                self.fail_job(event.failure)
            case told.OutputsCollected():
                self.post(events.Collected(event.failure))
            case told.LimitMet():
                self.post(events.LimitReached(event.text))
            case told.ValuesNoted():
                self._mirror.note(event.values)
            case told.ServiceDescribed():
                self._mirror.described(event.status)
            case told.ServiceRestarted():
                self._restarted_there(event.attempt)
            case told.ServiceEnded():
                self._over_there(event.status, event.failure)

    def _take(self, items: list[wire.Event | wire.Piece], time_ns: int | None = None) -> None:
        self._events.take(self.attempt, items, time.time_ns() if time_ns is None else time_ns)

    def _host_ended(self, end: HostEnd) -> None:
        self._take(self._streams.finish(end.host))
        elastic = self.attempt.elastic
        if elastic is not None:
            elastic.hosts.ended(end)
            self._replace_interrupted(end.host)
        goes_on = elastic is not None and not elastic.over
        last = elastic is not None and elastic.over and not elastic.roster.running
        saved = not goes_on and not self._backend.running and self.attempt.has_saved
        self.post(events.HostEnded(end, goes_on=goes_on, last=last, saved=saved))

    def interrupted(self, host: str, notice_s: float) -> None:
        """Handle a notice that a host will be taken away. An elastic job may replace the host as soon as the host is
        gone.
        """
        self._hosts.interrupt(host, notice_s, 0.0)
        if self.attempt.elastic is not None:
            self._interrupted.add(host)
            self.loop.call_later(notice_s, lambda: self._replace_interrupted(host))

    def _replace_interrupted(self, host: str) -> None:
        """Request a replacement for an interrupted host.

        The function is called twice: when the host has left, and when the host's notice has expired. Only the first
        call has an effect.
        """
        if host in self._interrupted:
            self._interrupted.discard(host)
            self._hosts.return_host(host)

    # --- calls of the controller of an elastic membership ---

    def event(self, kind: str, **data: Any) -> None:
        """Write an event into the record."""
        self._journal.event(kind, **data)

    def say(self, text: str) -> None:
        """Write a line from the supervisor into the log of the attempt's first host."""
        self._journal.say(self.attempt.spec.hosts[0], text)

    def fail_job(self, failure: Failure) -> None:
        """Fail the attempt because of a failure."""
        self.post(events.Failed(failure))

    def preempt(self, host: str, notice_s: float) -> None:
        """Interrupt the attempt because a host will be taken away. The ranks have ``notice_s`` seconds to save, and
        another attempt follows.
        """
        self.attempt.close()
        self.post(events.Preempted(host, notice_s))

    def await_hosts(self) -> list[str]:
        """Stop the attempt if hosts that were taken away will return. The next attempt uses these hosts again.

        Returns:
            The hosts that will return. If no host will return, the list is empty and the attempt continues.
        """
        now = time.monotonic()
        awaited = [host for host, back in self.machine.attempts.fleet.gone.items() if now < back < math.inf]
        if awaited:
            self.attempt.close()
            self.post(events.HostsAwaited(tuple(awaited), saved=self.attempt.has_saved))
        return awaited

    def note_hosts(self, hosts: list[dict[str, Any]]) -> None:
        """Store the hosts in the job's status."""
        self._journal.keep(hosts=hosts)
        self._journal.write_status()

    @property
    def protected(self) -> set[int]:
        """Return the pids of the child processes that are not killed with the job's processes."""
        return self._backend.protected

    def rank_of(self, host: str, process: str | None) -> int | None:
        """Return the current rank of a host's process. Return None for a process without a rank."""
        return self.attempt.rank_of(host, process)

    def fault_injected(self, fault: Fault, data: dict[str, Any]) -> None:
        """Record an injected fault as an event."""
        host = self.attempt.ranks.get(fault.rank) if isinstance(fault, Kill) else getattr(fault, "host", None)
        self.tell("fault", host or self.attempt.spec.hosts[0], f"fault: {fault}", **data)

    def tell(self, kind: str, host: str, text: str, **data: Any) -> None:
        """Record an event and write its text into the log."""
        self._journal.event(kind, **data)
        self._journal.say(host, text)

    # --- clients, signals, and jobs on a managed service ---

    def _sigterm(self) -> None:
        if self._is_managed and self._backend.running:
            # This machine may be shutting down, which does not affect the service's hosts.
            self.post(events.PlainEvent.LET_GO)
        else:
            self.post(events.StopAsked("the supervisor got SIGTERM"))

    def _restarted_there(self, number: int) -> None:
        self._streams.forget()
        self.machine.reported = None
        self._mirror.restarted(number)

    def _over_there(self, there: Mapping[str, Any], failure: Failure | None) -> None:
        self._take(self._streams.finish())
        self._mirror.last = there
        self.post(events.OverThere(failure))

    # --- the end ---

    def _finish(self) -> None:
        """Write the last status and release the caller, after all processes of the job have ended."""
        if self._watch is not None:
            self._watch.cancel()
        for fault in self._injector.end():
            self._journal.warn(f"fault: {fault} was not injected: the job ended first.")
        self.loop.end_descendants(spare=self.protected)
        self._backend.cleanup()
        if self._place is not None and self._queueing is not None:
            self._queueing.cancel()
            self._place.leave()
        for warning in self._misplaced_models():
            self._journal.warn(warning)
            self.say(f"warning: {warning}")
        decided = self.machine
        self._journal.finish()
        self._take_late_divergence()
        if decided.failure is None and decided.stopped_as is None and self._mirror.last is None:
            for warning in self._journal.unmatched():
                self._journal.warn(warning)
                self.say(f"warning: {warning}")
        self._journal.event("phase", name="job_ended")
        self._journal.close()
        if decided.failure is not None:
            decided.failure = mask_failure(with_neighbours(decided.failure, self._record), self._mask)
        finalize.write_ending(
            self._journal,
            self._record,
            self.attempt.spec,
            model=self._events.model,
            there=self._mirror.last,
            stopped_as=decided.stopped_as,
            failure=decided.failure,
        )
        if self._job.spot:
            finalize.bill(self._journal)
        hold("supervisor.before_commit")
        self._journal.write_status(last=True)
        self.clients.close()

    def _take_late_divergence(self) -> None:
        """Fail the job if a metric in the last lines is not a number.

        The journal searches the last lines only when the state machine has already handled its last event. Therefore
        the failure is set here.
        """
        while self._queue:
            event = self._queue.popleft()
            if isinstance(event, events.Diverged) and self.machine.stopped_as is None:
                self.machine.failure = self.machine.failure or event.failure

    def _misplaced_models(self) -> list[str]:
        """Return warnings about models that the script saved into a host's working folder. Return no warnings if the
        job has a model.
        """
        if self.machine.failure is not None or self.machine.stopped_as is not None:
            return []
        found = self._events.misplaced
        if self._is_managed and len(found) < len(self.attempt.spec.hosts):
            # the outputs are not accessible here, and a host without such a report may have saved the model properly
            return []
        if self._events.model is not None or finalize.archive_of(self.attempt.spec) is not None:
            return []
        return finalize.misplaced(self._record, found)

    async def linger(self) -> None:
        """Wait a limited time for the provenance collector, then end the collector.

        The caller has already received the result. Unless the time is shortened, also remove the temporary folders of
        killed jobs.
        """
        seconds = _ABANDONED_TIMEOUT if self.machine.abandoned else self._linger
        late = await self._provenance.wait(seconds)
        self.loop.end_descendants(spare=self.protected - late)
        if seconds == _PROVENANCE_TIMEOUT:
            finalize.tidy()

    # --- the record ---

    def diverged(self, event: wire.Event, text: str) -> None:
        """Warn of a metric that is not a number. Fail the job if its option ``on_nan`` is ``"fail"``.

        Here, a job on a managed service only gets the warning. The job's toolkits, which start the ranks, fail the job
        themselves.

        Args:
            event: The event of the metric.
            text: The text of the warning.
        """
        self._events.warn(event.host, text, event.time_ns)
        if self._options.on_nan == "fail" and not self._is_managed:
            self.post(events.Diverged(diverging.failure(text, event.host, event.rank)))

    def _secondary(self, name: str, message: str) -> None:
        """Post the event that the backend has reported a secondary status. Post nothing if the job's status is copied
        from a managed service.
        """
        if not self._mirror.begun:
            self.post(events.StatusReported(SecondaryStatus(name), message))

    def _show(self, secondary: SecondaryStatus, message: str) -> None:
        """Set the secondary status and write the status."""
        if self._mirror.begun:
            return
        self._journal.step(secondary, message)
        self._show_wait(secondary, message)
        self._journal.write_status()

    def _show_wait(self, secondary: SecondaryStatus, message: str) -> None:
        """Log a message about a wait for hosts. When the wait is over, log how long the job has waited."""
        host = self.attempt.spec.hosts[0]
        if secondary is SecondaryStatus.RESTARTING:
            self._waits_since = None
        if message and secondary in (SecondaryStatus.STARTING, SecondaryStatus.PENDING, SecondaryStatus.TRAINING):
            self._waits_since = self._waits_since or time.monotonic()
            self._journal.show_progress(host, message)
        elif self._waits_since is not None and secondary is SecondaryStatus.TRAINING:
            self._journal.say(host, f"starting, after {time.monotonic() - self._waits_since:.0f} s of waiting")
            self._waits_since = None

    def record_failed(self, error: RecordError) -> None:
        """Handle an error in writing the record. Fail the job, because its output would be lost. A job on a managed
        service continues, but is no longer followed.
        """
        if self._mirror.begun:
            print(f"fleetfit: {error}. The job is not followed any more.", file=sys.stderr)
            self.post(events.PlainEvent.LET_GO)
        elif self.machine.failure is None:
            self.fail_job(Failure(cause=Cause.CONFIGURATION, message=str(error)))
