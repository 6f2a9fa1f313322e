"""Define the state machine of a job, which receives events and returns actions. The time is an argument.

:class:`JobMachine` uses no file, process or clock. The supervisor (:mod:`.supervisor`) puts all events of a job into
one queue. The supervisor passes each event to the machine, with the time and whether a host runs. Then the supervisor
performs the returned actions. An elastic job uses the same machine. Which hosts are members of an elastic job is
decided separately (:mod:`.elastic`). If such a decision affects the whole job, the machine receives an event.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import signal
from collections.abc import Iterable

from container.contract.failures import Cause, Failure
from container.contract.frozen import dataclass
from estimators.backends.base import HostEnd
from estimators.job.failure_policy import EndedBy
from estimators.job.log_redaction import Mask, mask_failure
from estimators.records.states import SecondaryStatus
from estimators.supervisor.attempts import Attempts, NextAttempt
from estimators.supervisor.events import (
    Action,
    Begin,
    Collected,
    Diverged,
    Do,
    Event,
    Failed,
    HostEnded,
    HostReturned,
    HostsAwaited,
    HostTaken,
    KillHost,
    LimitReached,
    OverThere,
    PlainEvent,
    Preempted,
    Show,
    StatusReported,
    StopAsked,
    Tell,
    Warn,
)
from estimators.supervisor.lifecycle import TRANSITIONS, Happening, Stage

#: How long the other hosts may take to end after the loss of a host, in seconds.
_LOST_GRACE = 0.3
#: How long the other hosts may take to end after the failure of a host, in seconds. Then they are killed. The hosts'
#: own limit is 0.5 s.
_END_TIMEOUT = 1.5
#: How long the outputs may take to be packed after the script's time to save is over, in seconds.
_COLLECT_TIMEOUT = 10.0

#: The interval, in seconds, at which the machine checks whether an attempt has started its hosts. Only a started host
#: can be taken away.
_PREPARING_POLL = 0.1

#: The failure of a host whose toolkit received SIGTERM from another program.
TERMINATED = "the host's training process was stopped by another program (SIGTERM). The script had time to save."


class Due(enum.Enum):
    """The purpose of a deadline."""

    #: The next attempt may begin.
    NEXT = "next"
    #: The hosts that still run are terminated.
    END_HOSTS = "end_hosts"
    #: The notice of a host has expired, so that the host is killed.
    LOSE_HOST = "lose_host"
    #: The script's time to save is over.
    GRACE = "grace"
    #: The job is terminated without waiting any longer.
    END = "end"
    #: A failure has occurred while no host runs. The failure is handled now, because no end of a host will follow.
    NOBODY = "nobody"
    #: The attempt was stopped while no host runs. The attempt is ended now, because no end of a host will follow.
    ALL_ENDED = "all_ended"
    #: The machine checks again whether the attempt's hosts have started, because a host must be taken away.
    TAKE = "take"
    MAX_RUN = "max_run"
    MAX_WAIT = "max_wait"


#: The timers that are cancelled when an attempt ends.
_OF_ATTEMPT = (Due.END_HOSTS, Due.LOSE_HOST, Due.NOBODY, Due.ALL_ENDED, Due.MAX_RUN)


@dataclass(frozen=True)
class Deadline:
    """The time at which a timer expires."""

    at: float
    timer: Due
    host: str = ""


class JobMachine:
    """The state machine of a job, which decides what the job does next.

    Args:
        attempts: The job's attempts, with the hosts that are available for the attempts.
        stop_grace_s: The time that the script gets for saving when the job is stopped, in seconds.
        max_run_s: How long the hosts may run in all attempts together, in seconds. None for no limit.
        max_wait_s: How long the job may take in total, including the time in which it waits, in seconds. None for no
            limit.
        managed: Whether the job is on a managed service (SageMaker). The service then decides when the job ends.
        elastic: Whether hosts may join and leave.
        queued: Whether the job waits for its turn in a queue.
        mask: Removes the job's secrets from a failure. None to keep failures unchanged.

    Attributes:
        stage: The stage of the job.
        attempts: The job's attempts.
        hosts: The hosts of the attempt.
        ended: For each host of the attempt that has ended, how it ended, by the host's name.
        failure: The failure that prevents the attempt or the job from continuing, or None.
        reported: The failure that a host's toolkit (the process that starts the ranks) has reported, or None.
        terminated: The first host whose toolkit received SIGTERM from another program, or None.
        stopped_as: The final secondary status and the message of a job that is being stopped. None for other jobs.
        hurried: Whether the job is terminated without waiting for outputs.
        has_turn: Whether the job has its turn in the queue. True for a job that is not in a queue.
        abandoned: Whether the caller that waited for the job has ended.
    """

    def __init__(
        self,
        attempts: Attempts,
        *,
        stop_grace_s: float,
        max_run_s: float | None = None,
        max_wait_s: float | None = None,
        managed: bool = False,
        elastic: bool = False,
        queued: bool = False,
        mask: Mask | None = None,
    ) -> None:
        self.stage = Stage.RUNNING
        self.attempts = attempts
        self.hosts = attempts.hosts
        self.ended: dict[str, HostEnd] = {}
        self.failure: Failure | None = None
        self.reported: Failure | None = None
        self.terminated: str | None = None
        self.stopped_as: tuple[SecondaryStatus, str] | None = None
        self.hurried = False
        self.has_turn = not queued
        self.abandoned = False
        self._late_stop: tuple[SecondaryStatus, str] | None = None  # a stop requested while an attempt was failing
        self._stop_grace_s = stop_grace_s
        self._max_run_s = max_run_s
        self._max_wait_s = max_wait_s
        self._managed = managed
        self._elastic = elastic
        self._mask = Mask(()) if mask is None else mask
        self._all_have_ended = False
        self._told_to_stop = False
        self._bounded = False  # whether a host has failed, so that the other hosts have a deadline to end
        self._waits_until = 0.0
        self._taken: list[HostTaken] = []  # hosts to take away once the attempt's hosts have been started
        self._deadlines: list[Deadline] = []
        self._actions: list[Action] = []
        self._now = 0.0
        self._running = False

    # --- queries ---

    @property
    def over(self) -> bool:
        """Return whether the job is over. Events then have no effect."""
        return self.stage is Stage.OVER

    @property
    def waits(self) -> bool:
        """Return whether the job is waiting until its next attempt may begin."""
        return self.stage is Stage.WAITING

    @property
    def ends(self) -> bool:
        """Return whether the job is over or being stopped. Hosts can then no longer be taken away from the job."""
        return self.stage is Stage.OVER or self.stage.is_stopping

    @property
    def everyone_ended(self) -> bool:
        """Return whether all hosts of the attempt have ended."""
        return self._all_have_ended if self._elastic else len(self.ended) == len(self.hosts)

    def may_make_room(self, running: bool) -> bool:
        """Return whether the attempt can be preempted to make room for another job.

        The attempt must be running, and must not be losing a host already.
        """
        return self.stage is Stage.RUNNING and running and not self.attempts.taken

    def shows(self, status: SecondaryStatus) -> bool:
        """Return whether a secondary status is shown. While a job is being stopped, only ``Stopping`` is shown, and no
        status is shown once the job is over.
        """
        return not self.over and (not self.stage.is_stopping or status is SecondaryStatus.STOPPING)

    def next_deadline(self) -> float | None:
        """Return when :attr:`PlainEvent.TIME_UP` is due next. Return None if there is no deadline."""
        return min((deadline.at for deadline in self._deadlines), default=None)

    # --- events ---

    def handle(self, event: Event, now: float, *, running: bool) -> list[Action]:
        """Handle an event. Return the actions to perform.

        Args:
            event: The event.
            now: The current time in seconds. All calls must use the same clock.
            running: Whether the backend still has to report the end of a host (:attr:`Backend.running`). A host whose
                processes have ended counts as running until then.
        """
        self._actions, self._now, self._running = [], now, running
        if not self.over:
            self._take(event)
            self._take_pending()
        return self._actions

    def _take(self, event: Event) -> None:
        match event:
            case PlainEvent.STARTED:
                self._start()
            case PlainEvent.TURN_CAME:
                self._turn_came()
            case StatusReported():
                self._progress(event)
            case HostEnded():
                self._host_ended(event)
            case Failed():
                self._fail(event.failure)
            case Diverged():
                self._diverge(event.failure)
            case StopAsked():
                self._stop(event)
            case PlainEvent.CALLER_GONE:
                self.abandoned = True
                self._stop_as(SecondaryStatus.STOPPED, "The process that waited for the job has ended.")
                self._end_now()
            case LimitReached():
                self._reach_limit(SecondaryStatus.MAX_RUNTIME_EXCEEDED, event.text)
            case Preempted():
                self._do(Do.CLOSE_MEMBERSHIP)
                self._preempt(event.host, event.notice_s)
            case HostsAwaited():
                self.attempts.progressed |= event.saved
                self._await_hosts(event.hosts)
            case HostTaken():
                self._taken.append(event)
            case HostReturned():
                self._return(event.host)
            case PlainEvent.HOSTS_CHANGED:
                self._start_next()
            case Collected():
                self._collected(event.failure)
            case OverThere():
                self.failure = (self.reported or event.failure) if event.failure is not None else None
                self._finish()
            case PlainEvent.LET_GO:
                self._move(Happening.FINISH)
                self._do(Do.LET_GO)
            case PlainEvent.TIME_UP:
                self._time_up()

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _move(self, happening: Happening) -> None:
        self.stage = TRANSITIONS.following(self.stage, happening)

    # --- time ---

    def _in(self, seconds: float, timer: Due, host: str = "") -> None:
        self._deadlines.append(Deadline(self._now + seconds, timer, host))

    def _cancel(self, *timers: Due) -> None:
        self._deadlines = [deadline for deadline in self._deadlines if deadline.timer not in timers]

    def _has(self, timer: Due) -> bool:
        return any(deadline.timer is timer for deadline in self._deadlines)

    def _time_up(self) -> None:
        due = sorted((one for one in self._deadlines if one.at <= self._now), key=lambda one: one.at)
        for deadline in due:
            if deadline in self._deadlines:  # an earlier deadline may have cancelled this one
                self._deadlines.remove(deadline)
                self._is_due(deadline)

    def _is_due(self, deadline: Deadline) -> None:
        timer = deadline.timer
        if timer is Due.NEXT:
            self._start_next()
        elif timer is Due.END_HOSTS:
            self._do(Do.END_HOSTS)
        elif timer is Due.LOSE_HOST:
            self._lose(deadline.host)
        elif timer is Due.GRACE:
            self._grace_is_over()
        elif timer is Due.END:
            self._end_now()
        elif timer is Due.NOBODY:
            self._failed_without_hosts()
        elif timer is Due.ALL_ENDED:
            self._all_ended()
        elif timer is Due.MAX_RUN:
            text = f"The job was stopped after max_run, which is {self._max_run_s} s."
            self._reach_limit(SecondaryStatus.MAX_RUNTIME_EXCEEDED, text)
        elif timer is Due.MAX_WAIT:
            text = f"The job was stopped after max_wait, which is {self._max_wait_s} s and includes the job's waits."
            self._reach_limit(SecondaryStatus.MAX_WAIT_TIME_EXCEEDED, text)

    # --- the start ---

    def _start(self) -> None:
        if self._max_wait_s:
            self._in(self._max_wait_s, Due.MAX_WAIT)
        if self.has_turn:
            self._do(Begin(self.attempts.number, self.hosts))

    def _turn_came(self) -> None:
        if self.has_turn:
            return
        self.has_turn = True
        if self.stage is Stage.WAITING:
            self._start_next()
        elif self.stage is Stage.RUNNING:
            self._do(Begin(self.attempts.number, self.hosts))

    def _progress(self, event: StatusReported) -> None:
        if not self.shows(event.status):
            return
        self._do(Show(event.status, event.message))
        if event.status is not SecondaryStatus.TRAINING:
            return
        self.attempts.running(self._now)
        self._do(Do.HOSTS_STARTED)
        if self._max_run_s and not self._has(Due.MAX_RUN):
            # As on SageMaker, the time for downloading inputs or waiting for hosts does not count.
            self._in(max(0.0, self._max_run_s - self.attempts.ran(self._now)), Due.MAX_RUN)

    # --- stops and limits ---

    def _stop(self, event: StopAsked) -> None:
        if self._managed and self._running:
            self._do(Do.STOP_HOSTS)  # the service's status will show whether and how the job stops
            return
        grace_s = self._stop_grace_s if event.grace_s is None else event.grace_s
        self._stop_within(grace_s, SecondaryStatus.STOPPED, f"Stopped: {event.reason}.")

    def _reach_limit(self, final: SecondaryStatus, text: str) -> None:
        self._stop_within(self._stop_grace_s, final, text)

    def _stop_as(self, final: SecondaryStatus, message: str) -> None:
        if self.stage is Stage.FAILING:
            self._late_stop = self._late_stop or (final, message)
        elif self.stopped_as is None:
            self._do(Do.CLOSE_MEMBERSHIP)
            self._move(Happening.STOP)
            self.stopped_as = (final, message)
            self._do(Show(SecondaryStatus.STOPPING, message))

    def _stop_within(self, seconds: float, final: SecondaryStatus, message: str) -> None:
        between = self.stage is Stage.WAITING
        self._stop_as(final, message)
        if between and seconds > 0:
            # No host runs: the outputs of the last attempt are collected.
            self._cancel(Due.NEXT)
            self._in(_COLLECT_TIMEOUT, Due.END)
            self._do(Do.COLLECT)
        elif seconds <= 0 or not (self._running or self.everyone_ended):
            self._end_now()
        else:
            self._tell_to_stop()  # a second request would terminate the hosts at once
            self._in(seconds, Due.GRACE)

    def _grace_is_over(self) -> None:
        """Terminate the script because its time to save is over. Collect the outputs that the script has saved."""
        if self._running:
            self._do(Do.END_HOSTS)
        self._in(_COLLECT_TIMEOUT, Due.END)

    def _tell_to_stop(self) -> None:
        if not self._told_to_stop:
            self._told_to_stop = True
            self._do(Do.STOP_HOSTS)

    def _end_now(self) -> None:
        self.hurried = True
        self._do(Do.END_HOSTS)
        if not self._running:
            self._finish()  # no host was started, or all have ended

    # --- failures, and the end of hosts ---

    def _fail(self, failure: Failure) -> None:
        self.failure = self.failure or failure
        self._do(Do.CLOSE_MEMBERSHIP)
        between = self.stage is Stage.WAITING
        self._move(Happening.FAILURE)
        self._do(Do.END_HOSTS)
        if between:
            self._finish()
        elif not self._running:  # otherwise the end of the last host is about to be reported
            self._in(0.0, Due.NOBODY)

    def _failed_without_hosts(self) -> None:
        """Decide what follows a failure if no host runs. The decision is the same as after the end of all hosts."""
        if self._managed or self.stage.is_stopping or self.hurried:
            self._finish()
            return
        has_run = self.attempts.ran(self._now) > 0
        if self._end_attempt():
            return
        if has_run:  # an earlier attempt has left outputs
            self._collect()
        else:
            self._finish()

    def _diverge(self, failure: Failure) -> None:
        if self.stopped_as is not None:
            return
        if self._running or self.stage is Stage.WAITING:
            self._fail(failure)
        else:  # the job is ending already; record why
            self.failure = self.failure or failure

    def _host_ended(self, event: HostEnded) -> None:
        end = event.end
        self.ended[end.host] = end
        if event.goes_on:
            return  # an elastic job continues without the host
        self._all_have_ended |= event.last
        if end.host in self.attempts.removed:
            lost = Failure(cause=Cause.HOST_LOST, message="the host is gone.", host=end.host)
            end = dataclasses.replace(end, failure=lost)
        if end.failure is not None and (self.failure is None or self.failure.cause is Cause.HOST_LOST):
            self.failure = end.failure
            # A killed toolkit terminates no other host, and hosts that were not connected to it do not notice its
            # loss.
            self._in(_LOST_GRACE, Due.END_HOSTS)
        if self.everyone_ended:
            self.attempts.progressed |= event.saved
            self._all_ended()
        elif (self.stage.is_ending or self.hurried) and not self._running:
            self._finish()  # the other hosts were never started
        elif end.exit_code != 0 and not (self._bounded or self.stage.is_stopping or self.attempts.taken):
            # The other hosts end by themselves, because they are connected to the failed host. The timer limits how
            # long that takes.
            self._bounded = True
            self._in(_END_TIMEOUT, Due.END_HOSTS)

    def _all_ended(self) -> None:
        self._all_have_ended = True
        failed = any(end.exit_code != 0 for end in self.ended.values())
        if self._elastic:  # the exit codes of lost hosts count only if the whole attempt was taken away
            failed = failed and bool(self.attempts.taken)
        stopping = self.stage.is_stopping
        if not stopping and failed and self.failure is None and not self.attempts.taken:
            self.failure = self.reported or self._unexplained()
        if not stopping and (self.failure is not None or failed) and self._end_attempt():
            return
        if self.hurried:
            self._finish()
            return
        self._collect()

    def _collect(self) -> None:
        if not self.stage.is_stopping:
            # Outputs of a failed job are uploaded too: they may explain the failure, and hold hours of training.
            self._do(Show(SecondaryStatus.UPLOADING))
        if self.failure is not None:
            self._move(Happening.FAILURE)
        self._move(Happening.COLLECT)
        self._cancel(*_OF_ATTEMPT)  # timers that terminate hosts would also terminate the collection
        self._do(Do.COLLECT)

    def _unexplained(self) -> Failure:
        """Return the failure for hosts that failed although their toolkits have reported no failure."""
        failed = {host: end for host, end in self.ended.items() if end.exit_code != 0}
        host = self.terminated if self.terminated in failed else next(iter(failed))
        end = failed[host]
        message = f"the host's training process exited with code {end.exit_code} without saying why."
        if end.exit_code == 128 + signal.SIGTERM:
            message = TERMINATED
        return Failure(cause=Cause.PROCESS, message=message, host=host, exit_code=end.exit_code, signal=end.signal)

    # --- attempts ---

    def _end_attempt(self) -> bool:
        """End an attempt that was interrupted or has failed. Return whether another attempt follows."""
        self._cancel(*_OF_ATTEMPT)
        self._do(Do.ATTEMPT_OVER)
        if self.failure is not None:
            self.failure = mask_failure(self.failure, self._mask)
        outcome = self.attempts.over(self.failure, self._now)
        self._do(Do.KEEP_ATTEMPTS)
        if isinstance(outcome, Failure):
            self.failure = outcome
        elif self._late_stop is None:
            self._await_next(outcome)
            return True
        else:  # another attempt would have followed, but the job is to stop
            self._move(Happening.RETRY)
            self._stop_as(*self._late_stop)
        return False

    def _await_next(self, wait: NextAttempt) -> None:
        """Schedule another attempt."""
        preempted = wait.ending is not None and wait.ending.kind is EndedBy.PREEMPTION
        reason = wait.ending.what() if wait.ending is not None else ""
        if self.failure is not None and not preempted:
            reason = self.failure.summary()
        self._do(Show(SecondaryStatus.INTERRUPTED if preempted else SecondaryStatus.RESTARTING, reason))
        seconds = max(0.0, wait.until - self._now)
        pause = f" in {seconds:.1f} s" if seconds else ""
        text = f"attempt {self.attempts.number} is over ({reason}). The next attempt begins{pause}"
        self._do(Tell("restart", self.hosts[0], text, {"reason": reason, "pause_s": round(seconds, 3)}))
        self._waits_until = wait.until
        self._move(Happening.RETRY)
        self._in(seconds, Due.NEXT)
        self._do(Do.QUEUE_AGAIN)

    def _start_next(self) -> None:
        """Start another attempt on the available hosts if its time has come and enough hosts are available.

        If enough hosts will never be available, fail the job.
        """
        if self.stage is not Stage.WAITING or not self.has_turn:
            return
        self._cancel(Due.NEXT)
        wait = self.attempts.wait(self._now)
        if isinstance(wait, Failure):
            self.failure = wait
            self._move(Happening.FAILURE)
            self._move(Happening.COLLECT)
            self._do(Do.COLLECT)
            return
        if (until := max(wait.until, self._waits_until)) > self._now:
            self._deadlines.append(Deadline(until, Due.NEXT))
            return
        self._move(Happening.RESTART)
        for host in [host for host, back in self.attempts.fleet.gone.items() if back <= self._now]:
            self.attempts.fleet = self.attempts.fleet.returned(host)
            self._do(Tell("returned", host, f"{host} is back", {"target": host}))
        self.hosts = self.attempts.begin(self._now)
        self.ended = {}
        self.failure = self.reported = self.terminated = None
        self._all_have_ended = self._told_to_stop = self._bounded = False
        self._do(Begin(self.attempts.number, self.hosts))

    # --- hosts that are taken away ---

    @property
    def _is_preparing(self) -> bool:
        """Return whether the hosts of an attempt are being prepared and have not been started yet."""
        return (
            not (self.stage.is_ending or self._running)
            and self.stage is not Stage.WAITING
            and len(self.ended) < len(self.hosts)
        )

    def runs_on(self, host: str, running: bool) -> bool:
        """Return whether ``host`` belongs to the attempt, and still runs. ``running`` says whether any host runs."""
        return running and host in self.hosts and host not in self.ended

    def _take_pending(self) -> None:
        """Take away the hosts for which a :class:`HostTaken` event is pending.

        A host with a notice is taken away only after the attempt's hosts have started, so that the ranks can save.
        """
        taken, self._taken = self._taken, []
        for one in taken:
            if one.notice_s is not None and self._is_preparing:
                self._taken.append(one)
            elif not self.over:
                self._take_host(one)
        if self._taken and not self.over and not self._has(Due.TAKE):
            self._in(_PREPARING_POLL, Due.TAKE)

    def _take_host(self, taken: HostTaken) -> None:
        """Take a host away from a job that is not elastic.

        If the host gets a notice, all ranks are notified, and the host is killed when the notice has expired. If the
        host gets no notice, the host is killed at once.
        """
        host, back_in_s = taken.host, taken.back_in_s
        if self.ends or host not in self.attempts.fleet.present(self._now):
            return
        until = math.inf if back_in_s is None else self._now + back_in_s
        self.attempts.fleet = self.attempts.fleet.without(host, until=until)
        if taken.notice_s is None:
            self._do(Tell("removed", host, f"{host} is gone", {"target": host, "back_in_s": back_in_s}))
            if self.runs_on(host, self._running):
                self.attempts.removed.add(host)
                self._do(KillHost(host))
        else:
            data = {"target": host, "notice_s": taken.notice_s, "back_in_s": back_in_s}
            text = f"{host} is interrupted: the job has {taken.notice_s:g} s to save"
            self._do(Tell("interrupted", host, text, data))
            if self.runs_on(host, self._running):
                self._preempt(host, taken.notice_s)
        self._start_next()  # a waiting attempt may have too few hosts now

    def _return(self, host: str) -> None:
        if host in self.attempts.fleet.gone:
            self.attempts.fleet = self.attempts.fleet.returned(host)
            self._do(Tell("returned", host, f"{host} is back", {"target": host}))
            self._start_next()

    def _preempt(self, host: str, notice_s: float) -> None:
        self.attempts.taken.append(host)
        self._tell_to_stop()
        self._in(notice_s, Due.LOSE_HOST, host)

    def _lose(self, host: str) -> None:
        """Kill a host, and terminate the other hosts after ``_LOST_GRACE`` seconds."""
        if host not in self.ended:
            self._do(KillHost(host))
            self._in(_LOST_GRACE, Due.END_HOSTS)

    def _await_hosts(self, hosts: Iterable[str]) -> None:
        self._do(Do.CLOSE_MEMBERSHIP)
        self.attempts.taken += hosts
        self._do(Do.END_HOSTS)
        if not self._running:
            self._in(0.0, Due.ALL_ENDED)

    # --- the end ---

    def _collected(self, failure: Failure | None) -> None:
        if failure is not None and self.stopped_as is None and self.failure is None:
            self.failure = failure
        elif failure is not None:
            self._do(Warn(failure.message))
        self._finish()

    def _finish(self) -> None:
        """Finish the job. No hosts or outputs remain that the job would have to wait for."""
        if not self.over:
            self._move(Happening.FINISH)
            self._deadlines.clear()
            self._do(Do.FINISH)
