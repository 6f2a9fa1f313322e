"""Whether another attempt follows, when, and on which hosts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from container.contract import rules
from container.contract.failures import Cause, Failure
from estimators import ConfigurationError, FailurePolicy
from estimators.job.failure_policy import (
    Again,
    EndedBy,
    Ending,
    Final,
    PresentHosts,
    decide,
    exception_of,
    in_a_row,
    never_again,
    pause_s,
    place_of,
)
from estimators.supervisor.attempts import Attempts, NextAttempt

KILLED = Failure(cause=Cause.PROCESS, message="was killed by SIGKILL", host="algo-2", process="rank 1", signal=9)
LOST = Failure(cause=Cause.HOST_LOST, message="the host was lost.", host="algo-2")


def raised(error: str, line: int = 3) -> Failure:
    """A script's exception."""
    trace = f'Traceback (most recent call last):\n  File "/a/train.py", line {line}, in <module>\n    work()\n{error}\n'
    return Failure(cause=Cause.PROCESS, message=error, exit_code=1, traceback=trace)


def failed(failure: Failure = KILLED, *, progressed: bool = False, seconds: float = 5.0) -> Ending:
    return Ending(attempt=0, kind=EndedBy.FAILURE, failure=failure, progressed=progressed, seconds=seconds)


PREEMPTED = Ending(attempt=0, kind=EndedBy.PREEMPTION, taken=("algo-2",))


def test_without_a_policy_nothing_is_started_again_but_what_was_preempted() -> None:
    assert decide(FailurePolicy(), [failed()]) == Final()
    assert decide(FailurePolicy(), [PREEMPTED] * 50) == Again()


def test_failures_and_preemptions_are_counted_apart() -> None:
    policy = FailurePolicy(max_failures=1, max_preemptions=2)
    assert decide(policy, [PREEMPTED, PREEMPTED, failed()]) == Again(0.5)
    assert decide(policy, [failed(), PREEMPTED, PREEMPTED]) == Again()
    assert decide(policy, [failed(), PREEMPTED, failed()]) == Final("the job failed twice, and max_failures is 1.")
    final = decide(policy, [PREEMPTED, failed(), PREEMPTED, PREEMPTED])
    assert final == Final("the job was preempted 3 times, and max_preemptions is 2.")


def test_the_pause_grows_until_there_is_a_new_checkpoint() -> None:
    policy = FailurePolicy(max_failures=30, cooldown=(1.0, 6.0))
    pauses = []
    endings: list[Ending] = []
    for progressed in (False, False, False, False, True, False):
        endings.append(failed(progressed=progressed))
        decision = decide(policy, endings)
        assert isinstance(decision, Again)
        pauses.append(decision.pause_s)
    assert pauses == [1.0, 2.0, 4.0, 6.0, 1.0, 2.0]  # the fifth got on
    assert in_a_row([failed(), failed(), PREEMPTED, failed()]) == 1
    assert pause_s(0.5, 60, 10_000) == 60


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure(cause=Cause.CONFIGURATION, message="no such channel"), "the cause must be corrected first"),
        (Failure(cause=Cause.INTERNAL, message="a fault"), "a fault of fleetfit"),
        (raised("ModuleNotFoundError: No module named 'x'"), "ModuleNotFoundError is an error in the code"),
        (raised("SyntaxError: invalid syntax"), "SyntaxError is an error in the code"),
        (Failure(cause=Cause.PROCESS, message="", exit_code=127), "exit code 127"),
        (Failure(cause=Cause.PROCESS, message="", exit_code=2, log_tail="usage: train.py [-h]"), "does not accept"),
        (raised("ValueError: bad"), ""),
        (Failure(cause=Cause.PROCESS, message="", exit_code=2), ""),
        (KILLED, ""),
        (LOST, ""),
        (Failure(cause=Cause.TIMEOUT, message="no progress"), ""),
    ],
)
def test_what_would_only_repeat_is_not_tried_again(failure: Failure, reason: str) -> None:
    assert reason in never_again(failure) and bool(reason) == bool(never_again(failure))
    decision = decide(FailurePolicy(max_failures=5), [failed(failure)])
    assert isinstance(decision, Final if reason else Again)


def test_the_same_exception_at_the_same_place_at_once_is_tried_once_more_only() -> None:
    policy = FailurePolicy(max_failures=9)
    first, again = failed(raised("ValueError: step 7")), failed(raised("ValueError: step 9"))
    assert decide(policy, [first]) == Again(0.5)
    final = decide(policy, [first, again])
    assert isinstance(final, Final) and "the same exception at the same place" in final.why
    others: list[Any] = [
        failed(raised("ValueError: step 9"), progressed=True),  # it had got on
        failed(raised("ValueError: step 9"), seconds=90),  # it took its time
        failed(raised("ValueError: step 9", line=4)),  # elsewhere
        failed(raised("OSError: step 9")),  # something else
        failed(),
    ]
    for other in others:
        assert isinstance(decide(policy, [first, other]), Again)
    assert isinstance(decide(policy, [first, PREEMPTED, again]), Again)


def test_an_exception_and_its_place_are_read_from_the_traceback() -> None:
    assert exception_of(raised("tensorflow.python.errors.OpError: x: y")) == "OpError"
    assert exception_of(raised("KeyboardInterrupt")) == "KeyboardInterrupt"
    assert exception_of(KILLED) is None and place_of(KILLED) is None
    assert place_of(raised("ValueError: 1")) == ("ValueError", "train.py", 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_failures": -1}, "max_failures=…) must be a whole number of at least 0, or None, got -1."),
        ({"min_hosts": 0}, "min_hosts=…) must be a whole number of at least 1"),
        ({"max_preemptions": True}, "max_preemptions"),
        ({"cooldown": 3}, "must be two numbers of seconds"),
        ({"cooldown": (3, 1)}, "(first, longest), got (3, 1). The first, 3, is above the second, 1."),
        ({"cooldown": (-1, 1)}, "cooldown=…) must be a number of seconds from 0 to 315,360,000, got -1."),
        ({"max_failure": 1}, "Did you mean 'max_failures'?"),
    ],
)
def test_mistakes_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rules.from_dict(FailurePolicy, options)
    assert said in str(caught.value)


def test_a_fleet_says_who_is_there_and_when_there_are_enough() -> None:
    fleet = PresentHosts(hosts=("algo-1", "algo-2", "algo-3")).without("algo-2", until=30).without("algo-3")
    assert fleet.present(10) == ("algo-1",) and fleet.present(30) == ("algo-1", "algo-2")
    assert [fleet.enough_at(least, 10) for least in (1, 2, 3)] == [10, 30, math.inf]
    assert fleet.returned("algo-3").enough_at(3, 10) == 30


# --- the attempts of a job ---


def test_attempts_wait_for_hosts_that_come_back_and_go_on_with_fewer_where_that_is_allowed() -> None:
    hosts = ("algo-1", "algo-2")
    waits = Attempts(FailurePolicy(), hosts)
    waits.running(0.0)
    waits.taken.append("algo-2")
    waits.fleet = waits.fleet.without("algo-2", until=20.0)
    outcome = waits.over(KILLED, 10.0)
    assert isinstance(outcome, NextAttempt) and outcome.until == 20.0
    assert outcome.ending is not None and outcome.ending.kind is EndedBy.PREEMPTION and outcome.ending.failure is None
    assert waits.begin(20.0) == hosts and waits.number == 1 and not waits.taken

    smaller = Attempts(FailurePolicy(max_failures=1, min_hosts=1), hosts)
    smaller.running(0.0)
    smaller.fleet = smaller.fleet.without("algo-1")
    outcome = smaller.over(LOST, 10.0)
    assert isinstance(outcome, NextAttempt) and outcome.until == 10.5
    assert smaller.begin(10.5) == ("algo-2",)


def test_a_job_that_cannot_go_on_says_how_all_its_attempts_ended() -> None:
    attempts = Attempts(FailurePolicy(max_failures=2), ("algo-1", "algo-2"))
    attempts.running(0.0)
    assert isinstance(attempts.over(KILLED, 4.0), NextAttempt)
    attempts.begin(5.0)
    attempts.running(5.0)
    attempts.fleet = attempts.fleet.without("algo-2")
    final = attempts.over(LOST, 7.0)
    assert isinstance(final, Failure) and final.message == LOST.message
    assert final.attempts == ("attempt 0, after 4.0 s: algo-2, rank 1: was killed by SIGKILL",)
    assert "1 of 2 hosts are left, and no host will come back" in final.hints[-1]
    assert "earlier attempts:\n  attempt 0" in final.reason() and "attempt 0" in final.detail()
    assert [values["attempt"] for values in attempts.to_list()] == [0, 1]
    assert [Ending.from_dict(values).to_dict() for values in attempts.to_list()] == attempts.to_list()


def test_ports_that_are_taken_are_no_failure_at_first() -> None:
    taken = Failure(cause=Cause.PORT_TAKEN, message="a port is taken")
    attempts = Attempts(FailurePolicy(), ("algo-1",))
    for _ in range(2):
        outcome = attempts.over(taken, 1.0)
        assert isinstance(outcome, NextAttempt) and outcome.ending is None
        attempts.begin(1.0)
    assert attempts.over(taken, 1.0) == taken


def test_a_reason_keeps_room_for_the_last_attempts_and_the_exception() -> None:
    lines = tuple(f"attempt {number}, after 1.0 s: {'x' * 60}" for number in range(30))
    failure = Failure(cause=Cause.PROCESS, message="was killed", traceback="t" * 3000 + "\nEnd: 1", attempts=lines)
    reason = failure.reason()
    assert len(reason) <= 1024 and "attempt 29" in reason and reason.endswith("End: 1")
    assert Failure.from_dict(failure.to_dict()) == failure


def test_what_ran_is_counted_over_all_attempts() -> None:
    attempts = Attempts(FailurePolicy(), ("algo-1",))
    attempts.running(10)
    attempts.running(11)
    attempts.taken.append("algo-1")
    attempts.over(None, 20)
    assert attempts.to_list()[0]["seconds"] == 10
    attempts.begin(40)
    assert attempts.ran(45) == 10
    attempts.running(50)
    assert attempts.ran(55) == 15
