"""The table of launchers: what each says of itself holds."""

from __future__ import annotations

import importlib

import pytest

from container import launchers
from container.contract.strategies import STRATEGIES, Elastic, ElasticHorovod
from container.toolkit import train
from container.toolkit.runtime import Runtime


@pytest.mark.parametrize("name", launchers.LAUNCHERS)
def test_a_launcher_has_its_plan_and_its_runtime(name: str) -> None:
    launcher = launchers.LAUNCHERS[name]
    assert callable(importlib.import_module(launcher.module).plan)
    assert issubclass(train.load_runtime(launcher), Runtime)


def test_every_strategy_has_a_launcher_that_runs_it() -> None:
    assert launchers.of(None) is launchers.LAUNCHERS["script"]
    for strategy in STRATEGIES:
        changes = launchers.of(strategy()).membership_changes
        assert changes == issubclass(strategy, Elastic)
        assert strategy().fewest_hosts == (1 if changes else None)
    assert ElasticHorovod(min_hosts=3, max_hosts=4).fewest_hosts == 3
