"""What a job does next: events with their times go in, actions come out."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container.contract.failures import Cause, Failure
from estimators.backends.base import HostEnd
from estimators.job.failure_policy import EndedBy, Ending, FailurePolicy
from estimators.job.log_redaction import Mask
from estimators.job.secrets import MASK
from estimators.records.states import SecondaryStatus
from estimators.supervisor.attempts import Attempts
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
from estimators.supervisor.lifecycle import Stage
from estimators.supervisor.machine import JobMachine

HOSTS = ("algo-1", "algo-2")
FAILURE = Failure(cause=Cause.PROCESS, message="exited with code 3", host="algo-1", exit_code=3)
LOST = Failure(cause=Cause.HOST_LOST, message="the host was lost.", host="algo-2")
TRAINING = StatusReported(SecondaryStatus.TRAINING)


class Job:
    """A machine, and what the supervisor would know: the time, and whether a host runs."""

    def __init__(self, policy: FailurePolicy = FailurePolicy(), **more: Any) -> None:  # noqa: B008 - a value
        self.machine = JobMachine(Attempts(policy, HOSTS), stop_grace_s=more.pop("stop_grace_s", 120.0), **more)
        self.now = 0.0
        self.running = False

    def take(self, event: Event, *, running: bool | None = None, at: float | None = None) -> list[Action]:
        """Hand an event over, and return what follows."""
        self.running = self.running if running is None else running
        self.now = self.now if at is None else at
        return self.machine.handle(event, self.now, running=self.running)

    def trains(self) -> Job:
        """Go on until its hosts train."""
        assert self.take(PlainEvent.STARTED) == [Begin(0, self.machine.hosts)]
        assert Do.HOSTS_STARTED in self.take(TRAINING, running=True)
        return self

    def ends(self, host: str, code: int = 0, *, last: bool = False, **more: Any) -> list[Action]:
        """End a host; the last one leaves none running."""
        return self.take(HostEnded(HostEnd(host=host, exit_code=code, **more)), running=not last)

    def all_end(self, first: int = 0, second: int = 0) -> list[Action]:
        """End both hosts, and return what follows from the end of the second."""
        self.ends("algo-1", first)
        return self.ends("algo-2", second, last=True)

    def waits_until(self, moment: float) -> list[Action]:
        """Let time pass."""
        return self.take(PlainEvent.TIME_UP, at=moment)


def test_a_job_that_ends_well() -> None:
    job = Job()
    job.trains()
    assert job.ends("algo-1") == []
    assert job.ends("algo-2", last=True) == [Show(SecondaryStatus.UPLOADING), Do.COLLECT]
    assert job.machine.stage is Stage.COLLECTING and job.machine.everyone_ended
    assert job.take(Collected(None)) == [Do.FINISH]
    assert job.machine.over and job.machine.failure is None and job.machine.next_deadline() is None
    assert job.take(StopAsked("late")) == []


class TestFailure:
    def test_the_others_have_a_moment_to_end(self) -> None:
        job = Job().trains()
        assert job.ends("algo-1", 3) == []
        assert job.machine.next_deadline() == pytest.approx(1.5)
        assert job.waits_until(1.5) == [Do.END_HOSTS]

    def test_a_host_that_was_lost_bounds_it_more(self) -> None:
        job = Job().trains()
        job.ends("algo-2", 255, failure=LOST)
        assert job.waits_until(0.3) == [Do.END_HOSTS]
        assert Do.COLLECT in job.ends("algo-1", 130, last=True) and job.machine.failure == LOST

    @pytest.mark.parametrize(
        ("reported", "message"),
        [
            (FAILURE, "exited with code 3"),
            (None, "the host's training process exited with code 3 without saying why."),
        ],
    )
    def test_what_a_toolkit_has_reported_is_the_reason(self, reported: Failure | None, message: str) -> None:
        job = Job().trains()
        job.machine.reported = reported
        assert Do.COLLECT in job.all_end(3, 130)
        assert job.machine.failure is not None and job.machine.failure.message == message

    def test_what_a_host_needs_has_failed_before_one_ran(self) -> None:
        job = Job()
        job.take(PlainEvent.STARTED)
        assert job.take(Failed(FAILURE)) == [Do.CLOSE_MEMBERSHIP, Do.END_HOSTS]
        assert job.waits_until(0.0)[-1] is Do.FINISH
        assert job.machine.failure == FAILURE
        job = Job(FailurePolicy(max_failures=3), managed=True)
        job.take(PlainEvent.STARTED)
        job.take(Failed(FAILURE))
        assert job.waits_until(0.0) == [Do.FINISH]  # the service starts it again, or not

    def test_a_host_that_was_lost_before_one_ran_is_tried_again_as_the_policy_says(self) -> None:
        job = Job(FailurePolicy(max_failures=1, cooldown=(2.0, 2.0)))
        job.take(PlainEvent.STARTED)
        job.take(Failed(LOST))
        assert Do.QUEUE_AGAIN in job.waits_until(0.0) and job.machine.waits
        assert job.waits_until(2.0) == [Begin(1, HOSTS)]
        job.take(Failed(LOST))
        assert job.waits_until(2.0)[-1] is Do.FINISH
        assert job.machine.failure is not None and len(job.machine.failure.attempts) == 1

    def test_what_an_earlier_attempt_left_is_collected_when_the_next_one_cannot_start(self) -> None:
        job = Job(FailurePolicy(max_failures=1, cooldown=(0.0, 0.0))).trains()
        job.now = 5.0
        job.all_end(3, 3)
        job.waits_until(5.0)
        job.take(Failed(FAILURE))
        assert job.waits_until(5.0)[-1] is Do.COLLECT

    def test_the_end_of_the_last_host_that_is_told_meanwhile_has_its_consequences(self) -> None:
        job = Job(FailurePolicy(max_failures=1)).trains()
        job.ends("algo-1", 3)
        job.take(Failed(FAILURE), running=False)
        actions = job.ends("algo-2", 130, last=True)
        assert Do.QUEUE_AGAIN in actions and job.machine.waits
        assert Do.FINISH not in job.waits_until(0.1)

    def test_secrets_are_masked_before_a_failure_is_kept(self) -> None:
        job = Job(mask=Mask([FAILURE.message])).trains()
        job.machine.reported = FAILURE
        job.all_end(3, 130)
        assert job.machine.failure is not None and job.machine.failure.message == MASK

    def test_outputs_that_cannot_be_packed_fail_a_job_that_had_not_failed(self) -> None:
        unpacked = Failure(cause=Cause.CONFIGURATION, message="the disk is full")
        job = Job().trains()
        job.all_end()
        assert job.take(Collected(unpacked)) == [Do.FINISH] and job.machine.failure == unpacked
        job = Job().trains()
        job.machine.reported = FAILURE
        job.all_end(3, 0)
        assert job.take(Collected(unpacked)) == [Warn("the disk is full"), Do.FINISH]
        assert job.machine.failure is not None and job.machine.failure.message == FAILURE.message

    def test_a_metric_that_is_not_a_number_fails_the_job_unless_it_is_stopped(self) -> None:
        job = Job().trains()
        assert Do.END_HOSTS in job.take(Diverged(FAILURE)) and job.machine.stage is Stage.FAILING
        job = Job().trains()
        job.take(StopAsked("by hand"))
        assert job.take(Diverged(FAILURE)) == [] and job.machine.failure is None

    def test_a_metric_that_is_not_a_number_is_not_too_late_when_the_script_has_ended(self) -> None:
        job = Job().trains()
        job.all_end()
        job.take(Diverged(FAILURE))
        assert job.take(Collected(None))[-1] is Do.FINISH and job.machine.failure == FAILURE
        job = Job(FailurePolicy(max_failures=1, cooldown=(600.0, 600.0))).trains()
        job.machine.reported = dataclasses.replace(FAILURE, message="exited with code 5")
        job.all_end(5, 3)
        assert job.machine.waits
        assert job.take(Diverged(FAILURE))[-1] is Do.FINISH  # no other attempt is waited for
        assert job.machine.failure is not None and job.machine.failure.message == "exited with code 5"


class TestAttempts:
    def test_another_attempt_follows_after_its_pause(self) -> None:
        job = Job(FailurePolicy(max_failures=1, cooldown=(2.0, 8.0))).trains()
        job.machine.reported = FAILURE
        actions = job.all_end(3, 130)
        assert actions[:2] == [Do.ATTEMPT_OVER, Do.KEEP_ATTEMPTS]
        [told] = [action for action in actions if isinstance(action, Tell)]
        assert told.text.endswith("The next attempt begins in 2.0 s") and told.data["pause_s"] == 2.0
        assert job.waits_until(1.0) == [] and job.machine.next_deadline() == 2.0
        assert job.waits_until(2.0) == [Begin(1, HOSTS)]
        assert job.machine.failure is None and job.machine.ended == {} and job.machine.reported is None
        job.take(TRAINING, running=True)
        job.machine.reported = FAILURE
        assert Do.COLLECT in job.all_end(3, 130)
        assert job.machine.failure is not None and len(job.machine.failure.attempts) == 1

    def test_one_that_waits_in_its_queue_begins_when_its_turn_comes(self) -> None:
        job = Job(FailurePolicy(max_failures=1, cooldown=(0.0, 0.0)), queued=True)
        assert job.take(PlainEvent.STARTED) == []
        assert job.take(PlainEvent.TURN_CAME) == [Begin(0, HOSTS)]
        job.take(TRAINING, running=True)
        assert Do.QUEUE_AGAIN in job.all_end(3, 3)
        job.machine.has_turn = False  # it has made room
        assert job.waits_until(5.0) == []
        assert job.take(PlainEvent.TURN_CAME) == [Begin(1, HOSTS)]

    def test_max_run_counts_the_time_that_hosts_ran_in_all_attempts(self) -> None:
        job = Job(FailurePolicy(max_failures=1, cooldown=(100.0, 100.0)), max_run_s=10.0).trains()
        assert job.machine.next_deadline() == 10.0
        job.now = 4.0
        job.all_end(3, 3)
        assert job.machine.next_deadline() == 104.0  # nothing of it ends meanwhile
        job.waits_until(104.0)
        job.take(TRAINING, running=True, at=106.0)
        assert job.machine.next_deadline() == 112.0
        actions = job.waits_until(112.0)
        assert Do.STOP_HOSTS in actions and job.machine.stopped_as is not None
        assert job.machine.stopped_as[0] is SecondaryStatus.MAX_RUNTIME_EXCEEDED

    def test_attempts_of_an_earlier_supervisor_are_gone_on_from(self) -> None:
        earlier = [Ending(attempt=0, kind=EndedBy.FAILURE, failure=FAILURE)]
        machine = JobMachine(Attempts(FailurePolicy(), HOSTS, earlier=earlier, number=1), stop_grace_s=1.0)
        assert machine.handle(PlainEvent.STARTED, 0.0, running=False) == [Begin(1, HOSTS)]


class TestStop:
    def test_the_script_has_its_time_and_then_what_it_saved_is_kept(self) -> None:
        job = Job(max_wait_s=1000.0).trains()
        stopping = Show(SecondaryStatus.STOPPING, "Stopped: by hand.")
        assert job.take(StopAsked("by hand", 5.0)) == [Do.CLOSE_MEMBERSHIP, stopping, Do.STOP_HOSTS]
        assert job.take(StopAsked("again", 5.0)) == []  # to be told twice would end them at once
        assert Do.END_HOSTS in job.waits_until(5.0)
        assert job.all_end(130, 130) == [Do.COLLECT]
        assert job.take(Collected(None)) == [Do.FINISH]
        assert job.machine.failure is None
        assert job.machine.stopped_as == (SecondaryStatus.STOPPED, "Stopped: by hand.")

    def test_what_does_not_end_by_then_is_not_waited_for(self) -> None:
        job = Job().trains()
        job.take(StopAsked("by hand", 5.0))
        job.waits_until(5.0)
        assert job.waits_until(15.0) == [Do.END_HOSTS] and job.machine.hurried
        assert job.all_end(137, 137) == [Do.FINISH]

    @pytest.mark.parametrize("event", [StopAsked("now", 0.0), PlainEvent.CALLER_GONE])
    def test_one_that_gives_no_time_ends_everything_at_once(self, event: Event) -> None:
        job = Job().trains()
        assert job.take(event)[-1] is Do.END_HOSTS and job.machine.hurried
        job = Job()
        job.take(PlainEvent.STARTED)
        assert job.take(event)[-2:] == [Do.END_HOSTS, Do.FINISH]

    def test_between_two_attempts_what_the_last_one_left_is_kept(self) -> None:
        job = Job(FailurePolicy(max_failures=1, cooldown=(60.0, 60.0))).trains()
        job.all_end(3, 3)
        assert job.take(StopAsked("by hand"))[-1] is Do.COLLECT
        assert job.waits_until(60.0) == [Do.END_HOSTS, Do.FINISH]  # packing has 10 s

    def test_of_one_that_waits_for_its_turn_again_what_the_last_attempt_left_is_kept(self) -> None:
        job = Job(queued=True)
        job.take(PlainEvent.STARTED)
        job.take(PlainEvent.TURN_CAME)
        job.take(TRAINING, running=True)
        job.take(Preempted("algo-1", 5.0))
        assert Do.QUEUE_AGAIN in job.all_end(143, 143)
        job.machine.has_turn = False
        job.waits_until(1.0)
        assert job.take(StopAsked("by hand"))[-1] is Do.COLLECT

    def test_what_collects_is_not_ended_by_what_was_to_end_the_hosts(self) -> None:
        job = Job().trains()
        job.take(StopAsked("by hand", 60.0))
        job.ends("algo-2", 255, failure=LOST)
        assert job.ends("algo-1", 143, last=True)[-1] is Do.COLLECT
        assert Do.END_HOSTS not in job.waits_until(5.0)

    def test_one_that_comes_as_an_attempt_fails_waits_for_whether_the_job_does(self) -> None:
        for policy, stopped in ((FailurePolicy(max_failures=1), True), (FailurePolicy(), False)):
            job = Job(policy).trains()
            job.take(Failed(FAILURE))
            job.take(StopAsked("by hand"))
            assert Do.COLLECT in job.all_end(130, 130)
            assert (job.machine.stopped_as is not None) == stopped

    @pytest.mark.parametrize(
        ("event", "status", "text"),
        [
            (LimitReached("the budget of $5"), SecondaryStatus.MAX_RUNTIME_EXCEEDED, "the budget of $5"),
            (
                PlainEvent.TIME_UP,
                SecondaryStatus.MAX_RUNTIME_EXCEEDED,
                "The job was stopped after max_run, which is 10.0 s.",
            ),
        ],
    )
    def test_limits_stop_it_as_a_client_does(self, event: Event, status: SecondaryStatus, text: str) -> None:
        job = Job(max_run_s=10.0).trains()
        assert job.take(event, at=10.0) == [Do.CLOSE_MEMBERSHIP, Show(SecondaryStatus.STOPPING, text), Do.STOP_HOSTS]
        assert job.machine.stopped_as == (status, text)

    def test_max_wait_ends_a_job_that_waits_for_hosts(self) -> None:
        job = Job(max_run_s=10.0, max_wait_s=10.0).trains()
        job.take(HostTaken("algo-2", 0.0, 600.0))
        job.all_end(143, 137)
        assert job.machine.waits
        assert job.waits_until(10.0)[-1] is Do.COLLECT  # what the attempt has left
        assert job.machine.stopped_as is not None
        assert job.machine.stopped_as[0] is SecondaryStatus.MAX_WAIT_TIME_EXCEEDED

    def test_steps_of_the_backend_do_not_hide_that_it_is_stopping(self) -> None:
        job = Job().trains()
        job.take(StopAsked("by hand"))
        assert job.take(StatusReported(SecondaryStatus.PENDING, "no room")) == []

    def test_of_a_managed_job_the_service_decides(self) -> None:
        job = Job(managed=True)
        job.take(PlainEvent.STARTED)
        assert job.take(StopAsked("by hand"), running=True) == [Do.STOP_HOSTS] and job.machine.stopped_as is None
        assert job.take(PlainEvent.LET_GO) == [Do.LET_GO] and job.machine.over
        job = Job(managed=True)
        job.take(PlainEvent.STARTED)
        job.machine.reported = FAILURE
        there = Failure(cause=Cause.PROCESS, message="AlgorithmError")
        assert job.take(OverThere(there)) == [Do.FINISH] and job.machine.failure == FAILURE


class TestTaken:
    def test_a_gang_saves_within_the_notice_and_another_attempt_follows(self) -> None:
        job = Job().trains()
        actions = job.take(HostTaken("algo-2", 5.0, 20.0))
        assert [type(action) for action in actions] == [Tell, Do] and actions[-1] is Do.STOP_HOSTS
        assert job.waits_until(5.0) == [KillHost("algo-2")]
        job.ends("algo-2", 137)
        job.ends("algo-1", last=True)
        assert job.machine.waits and job.machine.next_deadline() == 20.0
        assert job.waits_until(20.0)[-1] == Begin(1, HOSTS)

    def test_fewer_hosts_go_on_where_the_policy_allows_it(self) -> None:
        job = Job(FailurePolicy(min_hosts=1)).trains()
        job.take(HostTaken("algo-2", None, None))
        job.ends("algo-2", 137)
        job.ends("algo-1", 1, last=True)
        assert job.machine.failure is not None and job.machine.failure.message == "the host is gone."
        job = Job(FailurePolicy(min_hosts=1, max_failures=1, cooldown=(0.0, 0.0))).trains()
        assert job.take(HostTaken("algo-2", None, None))[-1] == KillHost("algo-2")
        job.ends("algo-2", 137)
        job.ends("algo-1", 1, last=True)
        assert job.waits_until(0.0) == [Begin(1, ("algo-1",))]

    def test_a_notice_waits_for_somebody_who_can_save(self) -> None:
        job = Job()
        job.take(PlainEvent.STARTED)
        assert job.take(HostTaken("algo-2", 5.0, None)) == []
        assert job.waits_until(0.1) == []
        job.take(TRAINING, running=False)  # they are about to be started
        assert Do.STOP_HOSTS in job.take(PlainEvent.TIME_UP, at=0.3, running=True)

    def test_one_that_comes_back_is_there_for_the_attempt_that_waits_for_it(self) -> None:
        job = Job().trains()
        job.take(HostTaken("algo-2", 5.0, 500.0))
        job.all_end(143, 143)
        assert job.machine.next_deadline() == 500.0
        [told] = job.take(HostReturned("algo-2"), at=30.0)
        assert isinstance(told, Tell) and told.text == "algo-2 is back"
        assert job.waits_until(500.0) == [Begin(1, HOSTS)]

    def test_too_few_that_never_come_back_fail_the_job(self) -> None:
        job = Job().trains()
        job.take(HostTaken("algo-2", 5.0, None))
        assert Do.COLLECT in job.all_end(143, 143)
        assert job.machine.failure is not None and job.machine.failure.cause is Cause.HOST_LOST

    def test_nothing_is_taken_of_a_job_that_ends(self) -> None:
        job = Job().trains()
        job.take(StopAsked("by hand"))
        assert job.take(HostTaken("algo-2", 5.0, None)) == []


class TestElastic:
    def test_a_host_less_is_no_failure(self) -> None:
        job = Job(elastic=True).trains()
        end = HostEnd(host="algo-2", exit_code=137)
        assert job.take(HostEnded(end, goes_on=True)) == [] and not job.machine.everyone_ended
        actions = job.take(HostEnded(HostEnd(host="algo-1", exit_code=0), last=True), running=False)
        assert Do.COLLECT in actions and job.machine.failure is None

    def test_the_controllers_failure_and_the_end_of_the_last_host_are_one_end(self) -> None:
        job = Job(FailurePolicy(max_failures=1), elastic=True).trains()
        job.take(Failed(FAILURE), running=False)
        actions = job.take(HostEnded(HostEnd(host="algo-1", exit_code=1), last=True))
        assert job.machine.waits and Do.FINISH not in actions

    def test_one_whose_caller_is_gone_does_not_wait_for_a_host_that_has_not_come(self) -> None:
        job = Job(elastic=True).trains()
        job.take(PlainEvent.CALLER_GONE)
        end = HostEnded(HostEnd(host="algo-1", exit_code=130))
        assert job.take(end, running=False) == [Do.FINISH]

    def test_one_that_goes_with_all_that_train_is_a_preemption(self) -> None:
        job = Job(elastic=True).trains()
        assert job.take(Preempted("algo-1", 5.0)) == [Do.CLOSE_MEMBERSHIP, Do.STOP_HOSTS]
        assert job.waits_until(5.0) == [KillHost("algo-1")]
        job.take(HostEnded(HostEnd(host="algo-1", exit_code=137), last=True), running=False)
        assert job.machine.waits

    def test_hosts_that_come_back_have_another_attempt(self) -> None:
        job = Job(elastic=True)
        job.trains()
        job.machine.attempts.fleet = job.machine.attempts.fleet.without("algo-2", until=50.0)
        job.take(HostEnded(HostEnd(host="algo-2", exit_code=137), goes_on=True), running=False)
        assert job.take(HostsAwaited(("algo-2",))) == [Do.CLOSE_MEMBERSHIP, Do.END_HOSTS]
        job.waits_until(0.0)
        assert job.machine.everyone_ended
        assert job.machine.waits and job.machine.next_deadline() == 50.0


# --- any order of events ---

STIMULI: list[Event] = [
    Failed(FAILURE),
    Diverged(FAILURE),
    StopAsked("by hand", 3.0),
    StopAsked("at once", 0.0),
    StopAsked("as planned"),
    PlainEvent.CALLER_GONE,
    LimitReached("the reservation is over"),
    HostTaken("algo-1", 2.0, 10.0),
    HostTaken("algo-2", None, 5.0),
    HostTaken("algo-2", 1.0, None),
    HostReturned("algo-2"),
    StatusReported(SecondaryStatus.PENDING, "no room"),
]


class World:
    """A backend whose hosts end when they are told to, in an order that hypothesis chooses."""

    def __init__(self, policy: FailurePolicy) -> None:
        self.job = Job(policy, max_run_s=1000.0)
        self.up: list[str] = []
        self.due: list[Event] = []
        self.finished = 0
        self.begun: list[int] = []

    def take(self, event: Event) -> None:
        for action in self.job.take(event, running=bool(self.up)):
            self.perform(action)

    def perform(self, action: Action) -> None:
        assert not self.finished, f"{action} after the end"
        if isinstance(action, Begin):
            assert not self.up and self.job.machine.stopped_as is None
            self.begun.append(action.number)
            self.up = list(action.hosts)
            self.due.append(TRAINING)
        elif action is Do.STOP_HOSTS:
            self.end(self.up, 0)
        elif action is Do.END_HOSTS:
            self.end(self.up, 130)
        elif isinstance(action, KillHost):
            self.end([action.host], 137)
        elif action is Do.COLLECT:
            self.due.append(Collected(None))
        elif action is Do.FINISH:
            self.finished += 1

    def end(self, hosts: list[str], code: int) -> None:
        ending = [event.end.host for event in self.due if isinstance(event, HostEnded)]
        for host in hosts:
            if host in self.up and host not in ending:
                self.due.append(HostEnded(HostEnd(host=host, exit_code=code)))

    def step(self, choice: int) -> None:
        """Let one of the things that are due happen, or time pass."""
        if self.due:
            event = self.due.pop(choice % len(self.due))
            if isinstance(event, HostEnded):
                self.up.remove(event.end.host)
            self.take(event)
        elif (deadline := self.job.machine.next_deadline()) is not None:
            self.job.now = max(self.job.now, deadline)
            self.take(PlainEvent.TIME_UP)
        elif self.up:
            self.end(self.up[:1], 0)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STIMULI), st.integers(0, 6)), max_size=6),
    st.lists(st.integers(0, 3), min_size=20, max_size=20),
    st.sampled_from(
        [
            FailurePolicy(),
            FailurePolicy(max_failures=2, cooldown=(0.5, 1.0)),
            FailurePolicy(min_hosts=1, max_failures=1, max_preemptions=2),
        ]
    ),
)
def test_whatever_happens_in_whatever_order_the_job_ends_once(
    stimuli: list[tuple[Event, int]], choices: list[int], policy: FailurePolicy
) -> None:
    world = World(policy)
    world.take(PlainEvent.STARTED)
    for event, steps in stimuli:
        for number in range(steps):
            world.step(choices[number % len(choices)])
        if not world.finished:
            world.take(event)
    for number in range(500):
        if world.finished:
            break
        world.step(choices[number % len(choices)])
    assert world.finished == 1, f"it hangs in {world.job.machine.stage}, with {world.up} up"
    assert world.job.machine.next_deadline() is None
    assert world.begun == list(range(len(world.begun)))
    if world.job.machine.stopped_as is None and world.job.machine.failure is None:
        assert math.isfinite(world.job.now) and not any(end.exit_code for end in world.job.machine.ended.values())
