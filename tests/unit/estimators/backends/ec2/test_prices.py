"""What hosts cost."""

from __future__ import annotations

import pytest

from estimators.backends.ec2.api import read_price
from estimators.backends.ec2.prices import Price, Prices, Span, cost_of, hourly
from estimators.backends.ec2.requests import Lifecycle

HOUR = 3600.0
PRICES = Prices(
    {"g5.xlarge": 1.0},
    [
        Price(type="g5.xlarge", zone="b", since=0.0, per_hour=0.4),
        Price(type="g5.xlarge", zone="a", since=HOUR, per_hour=0.6),
        Price(type="g5.xlarge", zone="a", since=0.0, per_hour=0.2),
    ],
)


def span(began: float = 0.0, ended: float | None = None, **more: object) -> Span:
    values = {"type": "g5.xlarge", "zone": "a", "lifecycle": Lifecycle.SPOT, **more}
    return Span(began=began, ended=ended, **values)  # type: ignore[arg-type]


def test_a_host_is_paid_at_the_price_of_each_moment() -> None:
    cost = cost_of([span(ended=2 * HOUR), span(ended=HOUR, zone="b")], PRICES, 9 * HOUR)
    assert cost.total == pytest.approx(0.2 + 0.6 + 0.4)
    assert cost.on_demand == pytest.approx(3.0)
    assert cost.host_s == 3 * HOUR and cost.complete


@pytest.mark.parametrize(
    ("ended", "taken", "seconds"),
    [
        (600.0, True, 0.0),  # EC2 took it in its first hour
        (600.0, False, 600.0),
        (HOUR, True, HOUR),
        (5.0, False, 60.0),  # no less than a minute
    ],
)
def test_what_ec2_takes_in_its_first_hour_is_not_billed(ended: float, taken: bool, seconds: float) -> None:
    assert span(ended=ended, taken=taken).billed(9 * HOUR) == seconds


def test_an_on_demand_host_is_billed_whoever_ends_it() -> None:
    host = span(ended=600.0, taken=True, lifecycle=Lifecycle.ON_DEMAND)
    assert cost_of([host], PRICES, 0.0).total == pytest.approx(1 / 6)


def test_a_price_that_is_not_known_is_said() -> None:
    cost = cost_of([span(ended=HOUR, zone="c"), span(ended=HOUR, type="p9.large")], PRICES, 0.0)
    assert not cost.complete and cost.on_demand is None


def test_before_the_first_price_that_one_counts() -> None:
    assert cost_of([span(began=-HOUR, ended=0.0)], PRICES, 0.0).total == pytest.approx(0.2)


def test_what_runs_now_costs_so_much_an_hour() -> None:
    assert hourly([span(), span(zone="b"), span(ended=5.0)], PRICES) == pytest.approx(0.6 + 0.4)
    assert PRICES.spot_range("g5.xlarge", "a") == (0.2, 0.6)
    assert PRICES.zones("g5.xlarge") == ["b", "a"]


def test_the_price_list_is_read() -> None:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": "1.0060000000"}}
    product = {"terms": {"OnDemand": {"a.b": {"priceDimensions": {"a.b.c": dimension}}}}}
    assert read_price([{}, {"terms": {"Reserved": {}}}, product]) == 1.006
    assert read_price([]) is None
