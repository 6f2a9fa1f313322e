"""When a market of spot capacity takes which host away, and what it bills."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators import ConfigurationError, RunOptions
from estimators.faults import SpotMarket
from estimators.job.spot_market import Interruption, billable_seconds, interruptions, price_seconds, savings

HOSTS = ("algo-1", "algo-2")


def test_a_trace_is_played_in_order() -> None:
    market = SpotMarket(trace=[(30, "algo-1", None), (10, "algo-2"), (20, "algo-2", 5)], return_after_s=60)
    found = [(item.at_s, item.host, item.return_after_s) for item in interruptions(market, HOSTS)]
    assert found == [(10, "algo-2", 60), (20, "algo-2", 5), (30, "algo-1", None)]
    assert market.interrupts and not SpotMarket().interrupts and market.hosts() == {"algo-1", "algo-2"}


def test_a_rate_is_random_by_its_seed_alone() -> None:
    market = SpotMarket(rate=60, seed=7)
    first = list(itertools.islice(interruptions(market, HOSTS), 4000))
    assert first == list(itertools.islice(interruptions(market, HOSTS), 4000))
    assert first == sorted(first) and {item.host for item in first} == set(HOSTS)
    other = list(itertools.islice(interruptions(SpotMarket(rate=60, seed=8), HOSTS), 5))
    assert other != first[:5]
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(item for item in first if item.host == "algo-1")]
    assert statistics.mean(gaps) == pytest.approx(60, rel=0.1)  # one in a minute


def test_above_the_highest_price_everybody_is_interrupted_until_it_falls() -> None:
    market = SpotMarket(price_history=[(0, 1), (100, 3), (150, 4), (300, 2), (400, 9)], max_price=2, notice_s=120)
    found = [(item.at_s, item.host, item.return_after_s) for item in interruptions(market, HOSTS)]
    assert found == [(100, "algo-1", 80), (100, "algo-2", 80), (400, "algo-1", None), (400, "algo-2", None)]


def test_no_host_comes_back_while_the_price_is_above_the_highest() -> None:
    market = SpotMarket(
        trace=[(80, "algo-2", 10), (85, "algo-2", 40), (290, "algo-2", 20)],
        price_history=[(0, 1), (100, 3), (200, 1), (300, 3)],
        max_price=2,
        notice_s=5,
    )
    found = [(item.at_s, item.return_after_s) for item in interruptions(market, HOSTS) if item.host == "algo-2"]
    assert found == [(80, 10), (85, 110), (100, 95), (290, None), (300, None)]


def test_no_host_comes_back_while_there_is_none() -> None:
    market = SpotMarket(
        trace=[(10, "algo-1"), (20, "algo-2"), (200, "algo-1", None)], notice_s=5, return_after_s=30,
        outages=[(60, 90), (50, 70)],
    )  # fmt: skip
    found = [(item.at_s, item.return_after_s) for item in interruptions(market, HOSTS)]
    # Back at 45 s: it is before; at 55 s: after the first 70 s, which are within the second.
    assert found == [(10, 30), (20, 65), (200, None)]


def test_who_is_refused_asks_again() -> None:
    market = SpotMarket(rate=60, seed=7, refusals=0.5, retry_s=100, return_after_s=3)
    waits = [item.return_after_s for item in itertools.islice(interruptions(market, HOSTS), 4000)]
    assert waits == [item.return_after_s for item in itertools.islice(interruptions(market, HOSTS), 4000)]
    refused = [((wait or 0) - 3) / 100 for wait in waits]
    assert all(count == pytest.approx(round(count)) for count in refused)
    # Half of them are not refused; the mean is one refusal.
    assert sum(count < 0.5 for count in refused) / 4000 == pytest.approx(0.5, abs=0.05)
    assert statistics.mean(refused) == pytest.approx(1.0, abs=0.1)
    free = dataclasses.replace(market, refusals=0.0)
    moments = [[item.at_s for item in itertools.islice(interruptions(one, HOSTS), 50)] for one in (market, free)]
    assert moments[0] == moments[1]


def test_time_is_billed_at_the_price_of_its_moment() -> None:
    spans = [(0.0, 100.0), (150.0, 250.0)]
    assert billable_seconds(SpotMarket(), spans) == 200
    market = SpotMarket(price_history=[(50, 1), (200, 2)], on_demand_price=4)
    assert billable_seconds(market, spans) == 100 / 4 + 50 / 4 + 50 / 2
    assert price_seconds(market, 150, 250) == 50 * 1 + 50 * 2
    assert savings(500, 100) == 80 and savings(0, 0) == 0


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 10)), min_size=1),
    st.lists(st.floats(0, 1e4), min_size=2, max_size=2).map(sorted),
    st.floats(0, 1e4),
)
def test_a_bill_does_not_depend_on_how_the_time_is_cut(
    prices: list[tuple[float, float]], span: list[float], cut: float
) -> None:
    market = SpotMarket(price_history=prices, on_demand_price=1.0)
    begin, end = span
    middle = min(max(cut, begin), end)
    whole = billable_seconds(market, [(begin, end)])
    assert billable_seconds(market, [(begin, middle), (middle, end)]) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": -1}, "SpotMarket(rate=…) must be a number, at least 0; got -1"),
        ({"notice_s": "2m"}, "notice_s"),
        ({"trace": [(20,)]}, "each item must be (seconds, host) or (seconds, host, return_after_s)"),
        ({"trace": "algo-2"}, "must be a list"),
        ({"price_history": [3]}, "each item must be (seconds, price)"),
        ({"max_price": 3}, "needs a price_history"),
        ({"price_history": [(0, 1)], "on_demand_price": 0}, "must be above 0"),
        ({"refusals": 1.0}, "must be below 1, got 1.0. For hosts that never come back, use return_after_s=None"),
        ({"retry_s": -1}, "retry_s"),
        ({"outages": [(5, 5)]}, "(5, 5) ends before it begins"),
        ({"outages": [5]}, "each item must be (from, until); got 5"),
        ({"seed": 1.5}, "seed=…) must be a whole number"),
        ({"notice": 3}, "Did you mean 'notice_s'?"),
    ],
)
def test_mistakes_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SpotMarket.from_dict(options)
    assert said in str(caught.value)


def test_the_options_of_a_run_carry_it_and_read_it_back() -> None:
    market = SpotMarket(trace=[(1, "algo-2", None)], price_history=[(0, 1.5)], on_demand_price=3.0, notice_s=300)
    options = RunOptions(spot_market=market)
    assert RunOptions.from_json(options.to_json()) == RunOptions(**options.to_dict()) == options
    assert options.longest_grace == 300 and RunOptions().longest_grace == RunOptions().stop_grace
    assert dataclasses.replace(options, spot_market=None).spot_market is None
    assert Interruption(1, "a") < Interruption(2, "a")
