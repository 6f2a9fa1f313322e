"""``recommend(spot=True)``, and what simulate() says of published figures."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest
import scaling

from estimators.client.simulation.fleet import meets, ranked
from estimators.faults import SpotMarket
from estimators.job.errors import ConfigurationError
from estimators.planning import FleetRecommendation, Timings, Workload, recommend, simulate
from estimators.results.advice.model import Constants

WORK = Workload(compute_s=0.1, gradient_bytes=4.0, batch_size=10)
MARKET = SpotMarket(rate=2.0, return_after_s=120.0)
STILL = Timings(start_s=0, import_s=0, look_s=0, resize_s=0, loss_s=0, commit_s=0, checkpoint_s=0, restart_s=0)


def of(**options: Any) -> FleetRecommendation:
    given: dict[str, Any] = {
        "hosts": 4, "compute_s": 0.1, "batch_size": 10, "bandwidth_gbps": 10, "records": 1e6, "spot": True,
        "market": MARKET, "prices": (1.0, 3.0), "runs": 8,
    }  # fmt: skip
    return recommend(1e6, **{**given, **options})


class TestRecommend:
    def test_without_a_limit_the_cheapest_is_taken_and_of_those_alike_the_fastest(self) -> None:
        found = of()
        assert (found.strategy, found.hosts[0], found.on_demand_base) == ("elastic_horovod", 1, 0)
        costs = [one.cost.mean for one in found.options if one.cost is not None]
        assert costs[0] <= 1.06 * min(costs)
        text = str(found)
        assert text.startswith("take elastic_horovod on 1 to ")
        assert "hosts, 0 of them on demand, a commit every " in text
        assert "in 90 % of the runs" in text and "If hosts are interrupted three times as often: " in text
        assert found.worse.resizes.mean > found.choice.resizes.mean
        assert "<table" in found._repr_html_()

    def test_a_deadline_holds_for_nearly_all_runs(self) -> None:
        deadline = 0.9 * of().choice.seconds.high  # the cheapest fleet is too slow
        runs = of(deadline=deadline).choice.runs
        assert sum(run.completed and run.seconds <= deadline for run in runs) >= 0.95 * len(runs) > 0

    def test_each_run_has_to_keep_all_limits(self) -> None:
        """One run of twenty is too slow and another too dear: each limit alone holds for 95 % of them."""
        one = simulate(WORK, hosts=1, records=1e3, market=SpotMarket(), prices=(1.0, 1.0), timings=STILL, runs=1)
        (run,) = one.runs
        slow = dataclasses.replace(run, seconds=2 * run.seconds)
        dear = dataclasses.replace(run, spot_s=2 * run.spot_s)
        limits = 1.5 * run.seconds, 1.5 * (one.cost_of(run) or 0.0)
        for others in (slow,), (dear,):
            assert meets(dataclasses.replace(one, runs=(run,) * 19 + others), *limits)
        assert not meets(dataclasses.replace(one, runs=(run,) * 18 + (slow, dear)), *limits)

    def test_what_no_fleet_can_do_is_said_and_the_nearest_named(self) -> None:
        found = of(deadline=60.0, budget=0.01)
        assert "No fleet meets 60.0 s and $0.01 in 95 % of its runs. This fleet comes closest." in str(found)

    def test_the_order_is_that_of_the_limits(self) -> None:
        def forecast(hosts: int, prices: tuple[float, float]) -> Any:
            return simulate(WORK, hosts=hosts, records=1e5, market=SpotMarket(), prices=prices, timings=STILL, runs=1)

        cheap, fast = forecast(1, (1.0, 1.0)), forecast(4, (2.0, 2.0))
        assert ranked([fast, cheap], None, None) == [cheap, fast]
        assert ranked([cheap, fast], 500.0, None) == [fast, cheap]
        assert ranked([fast, cheap], 1.0, None) == [fast, cheap]  # nearer to what none meets

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"spot": False, "market": None, "prices": None, "records": None, "budget": 5}, "needs spot=True"),
            ({"market": None}, "needs market=SpotMarket(rate=…)"),
            ({"prices": None}, "needs prices=(spot, on demand)"),
            ({"prices": (1.0, None)}, "prices=…) must be (spot, on demand)"),
            ({"deadline": 0}, "recommend(deadline=…) must be a number above 0, got 0"),
            ({"deadline": float("inf")}, "recommend(deadline=…) must be a number above 0, got inf"),
            ({"budget": "much"}, "recommend(budget=…) must be a number above 0, got 'much'"),
            ({"hosts": 0}, "recommend(hosts=…) must be a whole number from 1 to 1,024, got 0"),
            ({"records": None}, "needs records="),
        ],
    )  # fmt: skip
    def test_what_is_missing_or_wrong_is_named(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            of(**options)
        assert message in str(caught.value)


class TestPublished:
    @pytest.mark.parametrize("name", scaling.HOROVOD_EFFICIENCY)
    def test_horovod_s_scaling_on_128_hosts(self, name: str) -> None:
        def seconds(hosts: int, per_host: int) -> float:
            return simulate(
                scaling.on_p100(name), hosts=hosts, processes_per_host=per_host, records=1e6, runs=1,
                market=SpotMarket(), timings=STILL, constants=scaling.HOROVOD_CONSTANTS, bandwidth_gbps=25,
            ).seconds.mean  # fmt: skip

        efficiency = seconds(1, 1) / (512 * seconds(128, 4))
        assert efficiency == pytest.approx(scaling.HOROVOD_EFFICIENCY[name], abs=0.05)

    def test_the_commit_trade_of_spot_hosts(self) -> None:
        def goodput(every: float | str) -> float:
            return simulate(
                WORK, hosts=(1, 4), records=1e6, commit_every=every, runs=20,
                market=SpotMarket(rate=6.0, notice_s=0.0, return_after_s=60.0),
                timings=dataclasses.replace(STILL, commit_s=1.0),
            ).goodput.mean  # fmt: skip

        # Often: the commits cost more; rarely: what is done again does.
        best = goodput("auto")
        assert best > goodput(2.0) + 0.1 and best > goodput(2000.0) + 0.1

    def test_the_cluster_sizes_of_elastic_horovod_on_ray(self) -> None:
        """8 workers, one more or one fewer each minute, at random, between 2 and 8."""
        walk, size, gone = random.Random(1), 8, []
        trace: list[tuple[Any, ...]] = []
        sizes = [8]
        for minute in range(1, 600):
            falls = size == 8 or (size > 2 and walk.random() < 0.5)
            if falls:
                gone.append((60.0 * minute, f"algo-{size}"))
                size -= 1
            else:
                at_s, host = gone.pop()
                trace.append((at_s, host, 60.0 * minute - at_s))
                size += 1
            sizes.append(size)
        trace += [(at_s, host, None) for at_s, host in gone]
        found = simulate(
            WORK, hosts=(2, 8), records=100 * 8 * 60.0 * 240, timings=STILL, runs=1,
            market=SpotMarket(trace=tuple(trace), notice_s=0.0), commit_every=0.001,
            constants=Constants(jitter=0.0),
        )  # fmt: skip
        minutes = next(count for count, done in enumerate(itertools.accumulate(sizes), 1) if done >= 8 * 240)
        assert found.goodput.mean == pytest.approx(240 / minutes, abs=0.01)
        assert found.resizes.mean == pytest.approx(minutes, abs=10)
        assert 0.55 < found.goodput.mean < 0.75  # such a walk has 5 workers of 8 in the mean
