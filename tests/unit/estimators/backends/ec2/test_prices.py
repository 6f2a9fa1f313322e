"""What hosts cost."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.backends.ec2.api import read_price
from estimators.backends.ec2.prices import cost, hourly
from estimators.backends.ec2.requests import Instance

HOUR = 3600.0
PRICES = {
    ("g5.xlarge", ""): [(0.0, 1.0)],
    ("g5.xlarge", "a"): [(0.0, 0.2), (HOUR, 0.6)],
    ("g5.xlarge", "b"): [(0.0, 0.4)],
}


def ran(launched: float = 0.0, ended: float | None = None, *, interrupted: bool = False, **more: Any) -> Instance:
    values = {"type": "g5.xlarge", "zone": "a", "spot": True, **more}
    return Instance(
        id="i-1",
        state="running" if ended is None else "terminated",
        launched=launched,
        ended=ended,
        reason="Server.SpotInstanceTermination" if interrupted else "Client.UserInitiatedShutdown",
        **values,
    )


def test_a_host_is_paid_at_the_price_of_each_moment() -> None:
    found = cost(PRICES, [ran(ended=2 * HOUR), ran(ended=HOUR, zone="b")], 9 * HOUR)
    assert found.total == pytest.approx(0.2 + 0.6 + 0.4)
    assert found.on_demand == pytest.approx(3.0)
    assert found.host_s == 3 * HOUR and found.complete


@pytest.mark.parametrize(
    ("host", "total"),
    [
        (ran(ended=600.0, interrupted=True), 0.0),  # EC2 interrupted it in its first hour
        (ran(ended=600.0), 0.2 / 6),
        (ran(ended=HOUR, interrupted=True), 0.2),
        (ran(ended=5.0), 0.2 / 60),  # no less than a minute
        (ran(ended=600.0, interrupted=True, spot=False), 1 / 6),
        (ran(launched=-HOUR, ended=0.0), 0.2),  # before the first price that one counts
    ],
)
def test_what_ec2_interrupts_in_its_first_hour_is_not_billed(host: Instance, total: float) -> None:
    assert cost(PRICES, [host], 9 * HOUR).total == pytest.approx(total)


def test_a_price_that_is_not_known_is_said() -> None:
    found = cost(PRICES, [ran(ended=HOUR, zone="c"), ran(ended=HOUR, type="p9.large")], 0.0)
    assert not found.complete and found.on_demand is None


def test_what_runs_now_costs_so_much_an_hour() -> None:
    assert hourly(PRICES, [ran(), ran(zone="b"), ran(ended=5.0), ran(zone="c")]) == pytest.approx(0.6 + 0.4)


def test_the_price_list_is_read() -> None:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": "1.0060000000"}}
    product = {"terms": {"OnDemand": {"a.b": {"priceDimensions": {"a.b.c": dimension}}}}}
    assert read_price([{}, {"terms": {"Reserved": {}}}, product]) == 1.006
    assert read_price([]) is None
