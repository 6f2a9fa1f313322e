"""When a market of spot capacity takes which host away."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from typing import Any

import pytest

from container.contract import rules
from estimators import ConfigurationError, RunOptions
from estimators.faults import SpotMarket
from estimators.job.spot_market import Interruption, interruptions

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


@pytest.mark.parametrize("seed", [0, (1 << 63) - 1, 1 << 63, -(1 << 63)])
def test_every_run_of_a_simulation_has_a_valid_seed(seed: int) -> None:
    market = SpotMarket(seed=seed)
    assert market.of_run(0) == market
    assert len({market.of_run(number).seed for number in range(5)}) == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": -1}, "SpotMarket(rate=…) must be a number from 0 to 315,360,000, got -1"),
        ({"notice_s": "2m"}, "notice_s"),
        ({"trace": [(20,)]}, "each item must be (seconds, host) or (seconds, host, return_after_s)"),
        ({"trace": "algo-2"}, "must be a list"),
        ({"seed": 1.5}, "seed=…) must be a whole number"),
        ({"notice": 3}, "Did you mean 'notice_s'?"),
    ],
)
def test_mistakes_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rules.from_dict(SpotMarket, options)
    assert said in str(caught.value)


def test_the_options_of_a_run_carry_it_and_read_it_back() -> None:
    market = SpotMarket(trace=[(1, "algo-2", None)], rate=0.5, notice_s=300)
    options = RunOptions(spot_market=market)
    assert rules.from_dict(RunOptions, json.loads(json.dumps(rules.to_dict(options)))) == options
    assert options.longest_grace == 300 and RunOptions().longest_grace == RunOptions().stop_grace
    assert dataclasses.replace(options, spot_market=None).spot_market is None
    assert Interruption(1, "a") < Interruption(2, "a")
