"""Who of the trials that share a fleet has how many hosts."""

from __future__ import annotations

from typing import Any

import pytest

from estimators import ElasticHorovod, Estimator
from estimators.job.errors import ConfigurationError
from estimators.tuner import ContinuousParameter, HyperparameterTuner, IntegerParameter, SharedFleetConfig
from estimators.tuning.fleet import Bounds, Standing, has_room, shares

FLEET = SharedFleetConfig(hosts=8, explore=0.5)
BOUNDS = Bounds(least=1, most=4)


def running(*values: float | None, hosts: int = 1) -> list[Standing]:
    return [Standing(number, hosts, value) for number, value in enumerate(values)]


def test_spare_hosts_go_to_the_best_trials() -> None:
    """Three trials of eight hosts: five are spare; the best takes all it can use, the second the rest."""
    found = shares(running(0.2, 0.9, 0.5), FLEET, BOUNDS, 0.1)
    assert found.hosts == {1: 4, 2: 3, 0: 1}
    assert found.stopped == ()


def test_a_trial_without_a_value_keeps_what_it_began_with() -> None:
    assert shares(running(None, 0.1, None), FLEET, BOUNDS, 0.1).hosts == {1: 4, 0: 3, 2: 1}
    assert shares(running(None, None), FLEET, BOUNDS, 0.9).stopped == ()


@pytest.mark.parametrize(("time_share", "left"), [(0.4, 8), (0.5, 8), (0.75, 4), (0.9, 2), (1.0, 2)])
def test_fewer_and_fewer_go_on_after_the_time_for_exploring(time_share: float, left: int) -> None:
    """Not below two: two trials can use all eight hosts, and a third one is in nobody's way any more."""
    found = shares(running(*(number / 10 for number in range(8))), FLEET, BOUNDS, time_share)
    assert sorted(found.hosts) == list(range(8 - left, 8))
    assert sorted(found.stopped) == list(range(8 - left))
    assert sum(found.hosts.values()) == 8


def test_nobody_is_stopped_whose_hosts_are_of_no_use() -> None:
    assert shares(running(0.1, 0.2), SharedFleetConfig(hosts=8), Bounds(least=1, most=2), 0.99).stopped == ()
    assert shares(running(0.1, 0.2), SharedFleetConfig(hosts=4), Bounds(least=1, most=4), 0.99).stopped == (0,)


def test_a_trial_begins_while_there_is_time_and_room() -> None:
    assert has_room(running(0.1, hosts=4), FLEET, BOUNDS, 0.4)
    assert not has_room(running(0.1, 0.2, hosts=4), FLEET, BOUNDS, 0.4)  # no host is free
    assert not has_room(running(0.1, hosts=2), FLEET, BOUNDS, 0.6)  # the one that runs will have more
    assert has_room(running(0.1, hosts=4), FLEET, BOUNDS, 0.6)  # hosts would be idle


def tuner(distribution: Any = None, **changes: Any) -> HyperparameterTuner:
    fleet = changes.pop("shared_fleet", SharedFleetConfig(hosts=4))
    estimator = Estimator(entry_point="train.py", distribution=distribution, instance_count=changes.pop("count", 1))
    ranges = {"lr": ContinuousParameter(0.1, 1.0)}
    return HyperparameterTuner(
        estimator, "score", ranges, **{"max_runtime_in_seconds": 60, "shared_fleet": fleet, **changes}
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SharedFleetConfig(hosts=0), "of at least 1, got 0"),
        (lambda: SharedFleetConfig(hosts=1, explore=1.0), "between 0 and 1"),
        (lambda: tuner(max_runtime_in_seconds=None), "max_runtime_in_seconds"),
        (lambda: tuner(strategy="PBT", max_jobs=4), "strategy PBT"),
        (lambda: tuner().fit(), "needs the distribution ElasticHorovod.*no distribution"),
        (lambda: tuner(ElasticHorovod()).fit(), "cannot grow"),
        (lambda: tuner(ElasticHorovod(max_hosts=8), count=5).fit(), "instance_count=5 hosts, but the fleet has 4"),
        (lambda: tuner(ElasticHorovod(discovery=list)).fit(), "Remove the arguments discovery="),
    ],
)
def test_what_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_hosts_of_a_shared_fleet_are_no_range() -> None:
    searched = tuner(ElasticHorovod(max_hosts=4))
    searched.add_fleet_ranges(hosts=IntegerParameter(1, 2))
    with pytest.raises(ConfigurationError, match=r"Leave out fleet\.hosts"):
        searched.fit()


def test_as_many_trials_as_there_is_time_for() -> None:
    spec = tuner(ElasticHorovod(max_hosts=4))._spec("name")
    assert (spec.limit, spec.parallel) == (10_000, 4)
    assert tuner(max_jobs=3, max_parallel_jobs=2)._spec("name").parallel == 2
