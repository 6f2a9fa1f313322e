"""simulate(): time and cost of a job on hosts that are taken away, by the deciders of the real supervisor."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from typing import Any

import pytest

from estimators import ElasticHorovod, FailurePolicy
from estimators.cli import simulate as command
from estimators.client.simulation import gang
from estimators.client.simulation.model import Stretch
from estimators.faults import SpotMarket
from estimators.job.errors import ConfigurationError
from estimators.planning import Forecast, Timings, simulate
from estimators.results.advice.model import Workload
from estimators.results.result import Result

#: One worker: 100 records a second; nothing to exchange, so hosts add up but for the slowest.
WORK = Workload(compute_s=0.1, gradient_bytes=1.0, batch_size=10)
QUIET = SpotMarket()
STILL = Timings(start_s=0, import_s=0, look_s=None, resize_s=0, loss_s=0, commit_s=0, checkpoint_s=0, restart_s=0)


def result(**values: Any) -> Result:
    """A job of two workers that trained on 20,000 records in two epochs, 200 of them a second."""
    given: dict[str, Any] = {
        "job_name": "job", "status": "Completed", "secondary_status": "Completed", "seconds": 100.0, "phases": {},
        "final_metrics": {}, "model_data": None, "checkpoints": None, "logs": "", "hosts": 2, "processes": 2,
        "hyperparameters": {"epochs": 2}, "global_batch_size": 20, "steps": 1000, "samples_per_second": 200.0,
    }  # fmt: skip
    return Result(**{**given, **values})


def of(market: SpotMarket = QUIET, **values: Any) -> Forecast:
    given: dict[str, Any] = {"hosts": (1, 2), "market": market, "runs": 1, "timings": STILL, "commit_every": 10.0}
    return simulate(result(), **{**given, **values})


class TestTime:
    def test_undisturbed_it_takes_what_it_was_measured_to_take(self) -> None:
        forecast = of()
        assert forecast.seconds.mean == pytest.approx(100.0) and forecast.goodput.mean == pytest.approx(1.0)
        assert forecast.completed == 1.0 and forecast.resizes.mean == 0.0
        assert forecast.lost_to["training"] == pytest.approx(1.0)

    @pytest.mark.parametrize("hosts", [(1, 2), 2])
    def test_starts_and_commits_take_their_time(self, hosts: Any) -> None:
        timings = Timings(start_s=3, import_s=2, resize_s=1, commit_s=0.5, checkpoint_s=0.5)
        first = 6.0 if isinstance(hosts, tuple) else 5.0
        forecast = of(hosts=hosts, timings=timings)
        assert forecast.seconds.mean == pytest.approx(first + 100.0 + 9 * 0.5)
        assert forecast.runs[0].commit_s == pytest.approx(4.5) and forecast.runs[0].idle_s == pytest.approx(first)

    def test_a_run_that_waits_for_hosts_for_ever_has_waited_until_it_was_given_up(self) -> None:
        """And not only until its last attempt, which would make it the fastest of all."""
        policy = FailurePolicy(min_hosts=2)
        forecast = of(SpotMarket(trace=((25, "algo-2"),), return_after_s=None), hosts=2, failure_policy=policy)
        assert forecast.completed == 0.0 and forecast.seconds.mean > 3600.0

    def test_an_attempt_that_ends_behind_the_limit_ends_the_run(self) -> None:
        """Its hosts are billed until then, and no time goes back."""
        job = of(hosts=2, epochs=100).job
        market = SpotMarket(trace=((800, "algo-2"), (1500, "algo-2")), notice_s=0, return_after_s=10)
        outcome = gang.run(job, market, FailurePolicy(min_hosts=2), 1000.0)
        assert not outcome.completed and outcome.seconds == pytest.approx(1500.0) and outcome.idle_s >= 0.0

    def test_more_hosts_more_epochs(self) -> None:
        assert of(hosts=(1, 4)).seconds.mean == pytest.approx(50.0)
        assert of(epochs=6).seconds.mean == pytest.approx(300.0)
        assert of(records=2e4 * 5).seconds.mean == pytest.approx(500.0)

    def test_the_cost_model_gives_what_was_not_measured(self) -> None:
        alone = simulate(WORK, hosts=(1, 1), records=1000, market=QUIET, timings=STILL, runs=1)
        assert alone.seconds.mean == pytest.approx(10.0)
        slow = dataclasses.replace(WORK, gradient_bytes=1e9)
        two = simulate(slow, hosts=(1, 2), records=1000, market=QUIET, timings=STILL, runs=1)
        four = simulate(slow, hosts=(1, 4), records=1000, market=QUIET, timings=STILL, runs=1)
        assert four.seconds.mean > two.seconds.mean / 1.5  # the links are what limits it


class TestElastic:
    def test_a_host_that_leaves_at_a_commit_loses_nothing(self) -> None:
        run = of(SpotMarket(trace=((25, "algo-2"),), notice_s=10, return_after_s=None)).runs[0]
        assert run.lost_s == 0.0 and run.resizes == 1 and run.interruptions == 1
        # Both until the commit at 30 s, then one alone.
        assert run.seconds == pytest.approx(30.0 + (20000 - 30 * 200) / 100)
        assert run.spot_s == pytest.approx(run.seconds + 30.0)

    def test_a_host_that_is_killed_costs_what_was_not_committed(self) -> None:
        market = SpotMarket(trace=((27, "algo-2"),), notice_s=0, return_after_s=None)
        run = of(market, timings=dataclasses.replace(STILL, loss_s=4)).runs[0]
        assert run.lost_s == pytest.approx(7.0) and run.idle_s == pytest.approx(4.0)
        assert run.seconds == pytest.approx(27.0 + 4.0 + (20000 - 20 * 200) / 100)

    def test_who_looks_between_commits_leaves_without_one_and_loses_nothing(self) -> None:
        market = SpotMarket(trace=((27, "algo-2"),), notice_s=2, return_after_s=None)
        run = of(market, timings=dataclasses.replace(STILL, look_s=1.0, resize_s=0.5)).runs[0]
        # At the commit that is 30 s away it would have been taken; the first meeting takes as long as any.
        assert run.lost_s == 0.0
        assert run.seconds == pytest.approx(28.0 + 0.5 + (20000 - 27.5 * 200) / 100)
        longer = of(market, timings=dataclasses.replace(STILL, look_s=1.0, resize_s=0.5, rendezvous_s=20.0)).runs[0]
        assert longer.idle_s == pytest.approx(20.5)

    def test_a_host_that_comes_back_has_the_place_that_the_market_knows(self) -> None:
        market = SpotMarket(trace=((25, "algo-2"), (27, "algo-2"), (60, "algo-2")), notice_s=0, return_after_s=15)
        # What comes while it is away takes nobody; its second loss is that of the host that came in its place.
        assert of(market).runs[0].interruptions == 2

    def test_another_host_comes_after_a_while(self) -> None:
        forecast = of(SpotMarket(trace=((25, "algo-2"),), notice_s=10, return_after_s=15))
        # Gone at 30 s; the place is taken at 35 s; another at 50 s, which joins at the commit that is just then.
        assert forecast.runs[0].seconds == pytest.approx(50.0 + (20000 - 30 * 200 - 20 * 100) / 200)
        assert forecast.runs[0].resizes == 2

    def test_below_the_least_it_waits(self) -> None:
        run = of(SpotMarket(trace=((25, "algo-2"),), notice_s=0, return_after_s=40), hosts=(2, 2)).runs[0]
        assert run.idle_s == pytest.approx(40.0) and run.seconds == pytest.approx(100.0 + 40.0 + 5.0)

    def test_when_nobody_is_left_it_begins_again_with_the_last_commit(self) -> None:
        market = SpotMarket(trace=((25, "algo-1"), (25, "algo-2")), notice_s=0, return_after_s=60)
        run = of(market).runs[0]
        assert run.completed and run.lost_s == pytest.approx(5.0) and run.seconds >= 25.0 + 60.0 + 80.0

    def test_nobody_takes_the_base(self) -> None:
        market = SpotMarket(rate=1000, notice_s=0, return_after_s=5)
        run = of(market, hosts=(1, 2), on_demand_base=2).runs[0]
        assert run.interruptions == 0 and run.spot_s == 0.0 and run.on_demand_s == pytest.approx(200.0)

    def test_limits_of_the_strategy_hold(self) -> None:
        market = SpotMarket(trace=((5, "algo-2", 5.0), (5, "algo-3", 25.0)), notice_s=0)
        at_once = of(market, hosts=(1, 3), records=1e5).runs[0]
        slowly = of(market, hosts=(1, 3), records=1e5, strategy=ElasticHorovod(grow_every=100.0)).runs[0]
        # The second of those that come joins at the first commit at least 100 s after the first.
        assert at_once.resizes == slowly.resizes == 3
        assert slowly.seconds == pytest.approx(at_once.seconds + (110 - 30) / 3, abs=4.0)

    def test_what_can_never_end_is_given_up(self) -> None:
        forecast = of(SpotMarket(rate=100_000, notice_s=0, return_after_s=0), hosts=(2, 2), records=1e6)
        assert forecast.completed == 0.0 and "0 % of them completed" in str(forecast)
        assert sum(forecast.lost_to.values()) == pytest.approx(1.0)


class TestRestarts:
    def test_a_notice_saves_and_the_next_attempt_waits_for_a_host(self) -> None:
        market = SpotMarket(trace=((27, "algo-2"),), notice_s=20, return_after_s=30)
        run = of(market, hosts=2, timings=Timings(start_s=0, import_s=0, checkpoint_s=0, restart_s=5)).runs[0]
        # Saved at 27 s; the host is taken at 47 s and back at 77 s; then the attempt starts.
        assert run.lost_s == 0.0 and run.seconds == pytest.approx(77.0 + 5.0 + 73.0)

    def test_a_notice_that_is_too_short_costs_what_was_not_saved(self) -> None:
        market = SpotMarket(trace=((27, "algo-2"),), notice_s=1, return_after_s=0)
        run = of(market, hosts=2, timings=Timings(start_s=0, import_s=0, checkpoint_s=2, restart_s=0)).runs[0]
        assert run.lost_s == pytest.approx(3.0)  # two checkpoints were complete at 24 s

    def test_others_may_be_taken_while_it_waits(self) -> None:
        market = SpotMarket(trace=((27, "algo-2"), (40, "algo-2"), (50, "algo-1")), notice_s=20, return_after_s=30)
        run = of(market, hosts=2, timings=Timings(start_s=0, import_s=0, checkpoint_s=0, restart_s=5)).runs[0]
        # algo-2 is back at 77 s, and cannot be taken before; algo-1 at 100 s.
        assert run.interruptions == 2 and run.resizes == 1
        assert run.seconds == pytest.approx(100.0 + 5.0 + 73.0)

    def test_the_policy_says_with_how_many_it_goes_on(self) -> None:
        market = SpotMarket(trace=((50, "algo-2"),), notice_s=0, return_after_s=None)
        assert of(market, hosts=2).completed == 0.0
        run = of(market, hosts=2, failure_policy=FailurePolicy(min_hosts=1)).runs[0]
        assert run.completed and run.seconds == pytest.approx(50.0 + 100.0)

    def test_the_policy_says_how_often(self) -> None:
        market = SpotMarket(trace=((10, "algo-1"), (20, "algo-1"), (30, "algo-1")), notice_s=0, return_after_s=0)
        assert of(market, hosts=2, failure_policy=FailurePolicy(max_preemptions=3)).completed == 1.0
        assert of(market, hosts=2, failure_policy=FailurePolicy(max_preemptions=2)).completed == 0.0


def test_the_same_seed_is_the_same_and_another_is_not() -> None:
    market = SpotMarket(rate=100, notice_s=0, return_after_s=5, seed=3)
    one, two = (of(market, hosts=(1, 4), records=2e5, runs=3) for _ in range(2))
    assert one.runs == two.runs and len({run.seconds for run in one.runs}) == 3
    assert of(dataclasses.replace(market, seed=4), hosts=(1, 4), records=2e5).runs[0] == one.runs[1]


def test_shares_add_up_and_the_cost_is_of_every_host() -> None:
    market = SpotMarket(rate=50, notice_s=2, return_after_s=20)
    forecast = of(market, hosts=(1, 4), records=1e6, runs=5, prices=(1.0, 3.0), on_demand_base=1)
    assert sum(forecast.lost_to.values()) == pytest.approx(1.0)
    assert forecast.cost is not None and forecast.on_demand_cost == pytest.approx(4 * 2500.0 * 3.0 / 3600)
    run = forecast.runs[0]
    assert run.on_demand_s == pytest.approx(run.seconds) and run.spot_s < 3 * run.seconds
    data = json.loads(json.dumps(forecast.to_dict()))
    assert data["cost"]["low"] <= data["cost"]["median"] <= data["cost"]["high"] and data["runs"] == 5
    assert "spot saves" in str(forecast) and "<table class=" in forecast._repr_html_()


def test_the_commit_interval_is_young_s() -> None:
    timings = Timings(commit_s=2.0)
    forecast = of(SpotMarket(rate=0.5), hosts=(1, 8), timings=timings, commit_every="auto", on_demand_base=4)
    assert forecast.job.every_s == pytest.approx((2 * 2.0 * 3600 / (0.5 * 4)) ** 0.5)
    assert of(commit_every="auto").job.every_s == 600.0


def test_a_stretch_counts_commits() -> None:
    stretch = Stretch(since=100.0, rate=1.0, every_s=10.0, commit_s=2.0)
    assert (stretch.trained_s(111.0), stretch.kept_s(111.0)) == (10.0, 0.0)
    assert (stretch.trained_s(113.0), stretch.kept_s(113.0)) == (11.0, 10.0)
    assert (stretch.next_commit(100.5), stretch.next_commit(112.0)) == (112.0, 112.0)
    assert (stretch.ends_at(10.0), stretch.ends_at(10.1)) == (110.0, pytest.approx(112.1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hosts": 0}, "hosts"),
        ({"hosts": (4, 2)}, "the minimum, 4, is above the maximum, 2"),
        ({"hosts": (1, 2, 3)}, "(minimum, maximum)"),
        ({"hosts": (1, 1024), "processes_per_host": 9}, "ranks"),
        ({"records": -1}, "records"),
        ({"records": 1, "epochs": 1}, "not both"),
        ({"commit_every": 0}, "commit_every"),
        ({"commit_every": math.inf}, "above 0 and at most 315,360,000, or 'auto', got inf"),
        ({"commit_every": math.nan}, "commit_every=…) must be a number of seconds above 0"),
        ({"commit_every": math.inf, "hosts": 4}, "commit_every"),
        ({"bandwidth_gbps": math.inf}, "bandwidth_gbps=…) must be a finite number above 0, got inf"),
        ({"bandwidth_gbps": 10**400}, "bandwidth_gbps"),
        ({"records": math.inf}, "records"),
        ({"prices": 3}, "(spot, on demand)"),
        ({"prices": (None, 3)}, "(spot, on demand)"),
        ({"prices": (True, False)}, "(spot, on demand)"),
        ({"on_demand_base": 3}, "from 0 to 2"),
        ({"runs": 0}, "runs"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        of(**values)


def test_what_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="has no samples per second"):
        simulate(result(samples_per_second=None), hosts=2, market=QUIET)
    with pytest.raises(ConfigurationError, match="needs records="):
        simulate(WORK, hosts=2, market=QUIET)
    with pytest.raises(ConfigurationError, match="has no hyperparameter 'epochs'"):
        simulate(result(hyperparameters={}), hosts=2, market=QUIET, epochs=3)
    with pytest.raises(ConfigurationError, match="Timings"):
        Timings(loss_s=-1)
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(ConfigurationError, match="fleetfit install simulation"):
        of()


def test_numbers_of_the_command_line() -> None:
    assert (command._hosts("8"), command._hosts("4:32")) == (8, (4, 32))
    with pytest.raises(ConfigurationError, match=r"--hosts '4-32': expected numbers such as 4:32"):
        command._hosts("4-32")
