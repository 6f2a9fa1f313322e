"""Faults to order: what they are, and when they happen."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import waiting

from container.contract import rules
from container.contract.wire import Event, Piece
from container.distributed.core.fault_injection import InjectedFaults
from container.system.loop import Loop
from estimators import MPI, ConfigurationError, FailurePolicy, ParameterServer, RunOptions, TensorFlow
from estimators.client import checks
from estimators.faults import Interrupt, Kill, RemoveHost, SpotMarket
from estimators.job import faults
from estimators.supervisor.fault_injection import FaultInjector

ALL = (
    Kill(rank=1, at_step=50),
    Kill(rank=0, at_s=3, signal="SIGSTOP", attempt=None),
    RemoveHost("algo-2", at_s=20, return_after_s=5),
    Interrupt("algo-1", 10, at_line="epoch 2, x"),
)
AWAY = RunOptions(spot_market=SpotMarket(trace=[(1, "algo-3")]))


def test_they_go_through_json_and_the_command_line() -> None:
    options = RunOptions(faults=ALL)
    assert rules.from_dict(RunOptions, json.loads(json.dumps(rules.to_dict(options)))) == options
    assert options.longest_grace == 120 and RunOptions(stop_grace=1, faults=ALL).longest_grace == 10
    texts = (
        "kill:rank=1,at_step=50",
        "kill:rank=0,at_s=3,signal=SIGSTOP,attempt=none",
        "remove-host:host=algo-2,at_s=20,return_after_s=5",
        "interrupt:host=algo-1,notice_s=10,at_line=epoch 2, x",
    )
    assert tuple(faults.parse(text) for text in texts) == ALL
    assert str(ALL[0]) == "Kill(at_step=50, rank=1)"
    assert faults.check(None) == () and faults.check(ALL[0]) == ALL[:1]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Kill(rank=1), "exactly one of at_step, at_s and at_line; got none"),
        (lambda: Kill(rank=1, at_step=1, at_s=1), "got at_step and at_s"),
        (lambda: Kill(rank=-1, at_s=1), "rank=…) must be a whole number of at least 0"),
        (lambda: Kill(rank=1, at_step=0), "at_step=…) must be a whole number of at least 1"),
        (lambda: Kill(rank=1, at_s=1, signal="SIGKIL"), "Did you mean 'SIGKILL'?"),
        (lambda: Kill(rank=1, at_s=1, signal=0), "a signal's name or number"),
        (lambda: Kill(rank=1, at_line="("), "is not a regular expression"),
        (lambda: RemoveHost("", at_s=1), "host=…) must be a string that is not empty, got ''"),
        (lambda: Interrupt("algo-1", notice_s=-1, at_s=1), "notice_s"),
        (lambda: faults.parse("kil:rank=1,at_s=1"), "Did you mean 'kill'?"),
        (lambda: faults.parse("kill:at_s=1"), "Kill() needs the argument 'rank'"),
        (lambda: faults.parse("kill:rank=1,at_stp=1"), "Did you mean 'at_step'?"),
        (lambda: faults.check("kill"), "must be a list"),
        (lambda: faults.check([3]), "faults: each must be a Kill(…)"),
        (lambda: TensorFlow(entry_point=__file__, instance_count=2).fit(faults=[Kill(rank=2, at_s=1)]), "are 0 to 1"),
        (lambda: TensorFlow(entry_point=__file__).fit(faults=[RemoveHost("algo-2", at_s=1)]), "'algo-2'"),
        (
            lambda: TensorFlow(entry_point=__file__, use_spot_instances=True, run_options=AWAY).fit(),
            "SpotMarket(trace=…): unknown host of the job 'algo-3'",
        ),
    ],
)
def test_mistakes_are_refused_before_anything_starts(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        make()


def test_a_chief_is_a_rank_more(tmp_path: Any) -> None:
    estimator = TensorFlow(entry_point=__file__, instance_count=2, distribution=ParameterServer())
    draft = estimator._draft(None, None, faults=(Kill(rank=2, at_s=1),))
    checks.check_faults(draft.spec, draft.options)
    other = TensorFlow(entry_point=__file__, instance_count=2, distribution=MPI())
    with pytest.raises(ConfigurationError):
        checks.check_faults(other._draft(None, None).spec, draft.options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (RunOptions(faults=ALL), "fit(faults=…) is not available with instance_type='ml.p3.2xlarge'"),
        (RunOptions(spot_market=SpotMarket(rate=1)), "RunOptions(spot_market=…)"),
        (RunOptions(failure_policy=FailurePolicy(max_failures=2)), "use max_retry_attempts"),
    ],
)
def test_they_are_refused_where_aws_decides(options: RunOptions, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        checks.refuse_faults("ml.p3.2xlarge", options)
    checks.refuse_faults("ml.p3.2xlarge", RunOptions(stop_grace=3))


# --- at a step: in the ranks ---


def test_ranks_are_told_of_the_steps_of_their_attempt() -> None:
    ordered = (*ALL, RemoveHost("algo-2", at_step=7, attempt=1))
    assert faults.step_orders(ordered, 0) == [{"id": 0, "rank": 1, "step": 50, "signal": 9}]
    assert faults.step_orders(ordered, 1) == [{"id": 4, "rank": 0, "step": 7}]


def test_a_rank_does_what_was_ordered_when_it_has_finished_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    said: list[dict[str, Any]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr("container.contract.events.emit", lambda kind, **data: said.append(data))
    text = '[{"id": 0, "rank": 1, "step": 5, "signal": 9}, {"id": 1, "rank": 0, "step": 6}]'
    rank_1 = InjectedFaults({"FLEETFIT_FAULTS": text})
    rank_1.reached(4, rank=1)
    assert not said
    rank_1.reached(6, rank=1)  # several steps in one execution
    assert (sent, said) == ([9], [{"id": 0, "step": 6}])
    rank_1.reached(7, rank=1)
    assert len(said) == 1
    heir = InjectedFaults({"FLEETFIT_FAULTS": text})
    heir.reached(6, rank=2)
    heir.reached(7, rank=1)  # it has the dead one's number now, but not its fate
    late = InjectedFaults({"FLEETFIT_FAULTS": text})
    late.passed(5)
    late.reached(6, rank=1)
    assert len(said) == 1 and not heir.pending and not late.pending
    again = InjectedFaults({"FLEETFIT_FAULTS": text, "FLEETFIT_FAULTS_DONE": "[0]"})  # it has started once more
    again.reached(6, rank=1)
    assert sent == [9]
    chief = InjectedFaults({"FLEETFIT_FAULTS": text})
    chief.reached(6, rank=0, coordinates=True)  # it sees the steps of all
    assert sent == [9] and [data["id"] for data in said[1:]] == [0, 1] and not chief.pending
    assert not InjectedFaults({}).pending and not InjectedFaults({"FLEETFIT_FAULTS": "{"}).pending


# --- at a time or a line: in the supervisor ---


class Hosts:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.told: list[Any] = []

    def rank_of(self, host: str, process: str | None) -> int | None:
        return int(process[5:]) if process else None

    def fault_injected(self, fault: faults.Fault, data: dict[str, Any]) -> None:
        self.told.append((fault, data))

    def interrupt(self, host: str, notice_s: float, back_in_s: float | None) -> None:
        self.asked.append(("interrupt", host, notice_s, back_in_s))

    def kill_rank(self, rank: int, signal: int) -> None:
        self.asked.append(("kill", rank, signal))

    def remove(self, host: str, back_in_s: float | None) -> None:
        self.asked.append(("remove", host, back_in_s))

    def return_host(self, host: str) -> None:
        self.asked.append(("return", host))


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


def injector(loop: Loop, hosts: Any, *injected: faults.Fault, market: SpotMarket | None = None) -> FaultInjector:
    return FaultInjector(loop, hosts, faults=injected, market=market, names=("algo-1", "algo-2"), supervisor=hosts)


def until(loop: Loop, condition: Callable[[], bool]) -> None:
    waiting.until(condition, between=lambda: loop.run_once(0.1))


def test_lines_are_those_of_the_rank_that_is_to_be_killed_and_of_any_rank_otherwise(loop: Loop, hosts: Hosts) -> None:
    kill, remove = Kill(rank=1, at_line="step 5$"), RemoveHost("algo-2", at_line="step 9")
    made = injector(loop, hosts, kill, remove)
    made.attempt_began(0)
    made.output(Piece("algo-1", "rank 0", b"step 5\n"))
    made.output(Piece("algo-1", None, b"step 9\n"))  # the toolkit's own words
    assert not hosts.asked
    made.output(Piece("algo-2", "rank 1", b"st"))
    made.output(Piece("algo-2", "rank 1", b"ep 5\n"))
    made.output(Piece("algo-2", "rank 1", b"step 5\n"))  # once
    made.output(Piece("algo-1", "rank 0", b"step 9\n"))
    assert hosts.asked == [("kill", 1, signal.SIGKILL), ("remove", "algo-2", None)]
    assert [fault for fault, _ in hosts.told] == [kill, remove] and hosts.told[0][1]["line"] == "step 5"
    assert made.end() == []


def test_times_belong_to_their_attempt_and_hosts_come_back(loop: Loop, hosts: Hosts) -> None:
    ordered = (Kill(rank=0, at_s=0), Interrupt("algo-2", 0.01, at_s=0, return_after_s=0.01, attempt=1))
    made = injector(loop, hosts, *ordered, Kill(rank=1, at_s=99), Kill(rank=1, at_s=0, attempt=7))
    made.attempt_began(0)
    until(loop, lambda: len(hosts.asked) == 1)
    made.attempt_ended()
    made.attempt_began(1)
    until(loop, lambda: len(hosts.asked) == 3)
    assert hosts.asked == [("kill", 0, 9), ("interrupt", "algo-2", 0.01, 0.02), ("return", "algo-2")]
    assert made.end() == ["Kill(at_s=99, rank=1)"]  # its attempt was there, the seventh was not


def test_a_rank_that_kills_itself_is_noted_and_a_chiefs_word_for_another_is_done(loop: Loop, hosts: Hosts) -> None:
    ordered = (Kill(rank=0, at_step=5), Kill(rank=1, at_step=5), RemoveHost("algo-2", at_step=6))
    made = injector(loop, hosts, *ordered)
    made.attempt_began(0)
    for number in (0, 1, 2, 2, 8):
        made.event(Event(kind="fault_step", host="algo-1", rank=0, data={"id": number, "step": 5}))
    assert hosts.asked == [("kill", 1, 9), ("remove", "algo-2", None)] and len(hosts.told) == 3


def test_a_market_goes_on_over_the_attempts(loop: Loop, hosts: Hosts) -> None:
    market = SpotMarket(trace=[(0, "algo-2", 0.01), (0.05, "algo-1", None)], notice_s=0)
    made = injector(loop, hosts, market=market)
    made.attempt_began(0)
    until(loop, lambda: len(hosts.asked) >= 2)  # on a busy machine the third is due as well
    made.attempt_began(1)
    until(loop, lambda: len(hosts.asked) == 3)
    assert hosts.asked == [("interrupt", "algo-2", 0, 0.01), ("return", "algo-2"), ("interrupt", "algo-1", 0, None)]
    assert not hosts.told and made.end() == []
