"""How the number of hosts of an experiment changes."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.contract import hyperparameters as codec
from container.contract.strategies import Distribution
from container.contract.wire import Event
from estimators import MPI, ConfigurationError, ElasticHorovod
from estimators.callbacks import Callback, GrowWithEpochs, RandomResize
from estimators.client.callbacks import Metric
from estimators.client.resizing import next_size, resize


@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers())
def test_a_walk_stays_within_its_limits(size: int, step: int, least: int, more: int, seed: int) -> None:
    most = least + more
    found = next_size(size, step=step, least=least, most=most, generator=random.Random(seed))
    if size >= most:
        assert found == max(least, size - step)  # at the maximum always down
    elif size <= least:
        assert found == min(most, size + step)  # at the minimum always up
    else:
        assert found in (min(most, size + step), max(least, size - step))


def test_up_and_down_are_alike_in_between() -> None:
    generator = random.Random(1)
    ups = sum(next_size(3, step=1, least=1, most=5, generator=generator) == 4 for _ in range(10_000))
    assert 4_800 < ups < 5_200


def record_of(strategy: Distribution, events: tuple[Event, ...] = ()) -> Any:
    request = {
        "TrainingJobName": "job",
        "HyperParameters": codec.encode(strategy.to_hyperparameters()),
        "ResourceConfig": {"InstanceCount": 2},
    }
    return SimpleNamespace(read_request=lambda: request, events=lambda kind: events)


class Job:
    """What the callbacks use of a job."""

    record = record_of(ElasticHorovod(max_hosts=4))

    def __init__(self, size: int) -> None:
        self.hosts = [f"algo-{number}" for number in range(1, size + 1)]
        self.asked: list[Any] = []
        self.leaving: set[str] = set()
        self.refuses = 0

    @property
    def membership(self) -> list[dict[str, str]]:
        return [{"name": name, "state": "leaving" if name in self.leaving else "ready"} for name in self.hosts]

    def add_hosts(self, count: int) -> None:
        if self.refuses:
            self.refuses -= 1
            raise ConfigurationError("over max_hosts")
        self.asked.append(count)
        self.hosts += [f"new-{number}" for number in range(count)]

    def remove_host(self, name: str) -> None:
        self.asked.append(name)
        self.hosts.remove(name)


class Ending(Job):
    """A job whose training is over."""

    record = record_of(
        ElasticHorovod(max_hosts=4), (Event(kind="phase", host="supervisor", data={"name": "elastic_finished"}),)
    )

    class status:
        is_terminal = False


def metric(epoch: float, name: str = "epoch") -> Metric:
    return Metric(name, epoch, 0, "algo-1", 0.0, 0)


def test_hosts_come_as_epochs_pass() -> None:
    job: Any = Job(1)
    callback = GrowWithEpochs({2: 2, 4: 4})
    for epoch in (1.0, 2.0, 2.0, 3.0, 4.0, 5.0):
        callback.on_metric(job, metric(epoch))
        callback.on_metric(job, metric(9.0, "loss"))
    assert job.asked == [1, 2]


def test_a_callback_that_is_used_again_resizes_the_next_job_too() -> None:
    growing = GrowWithEpochs({2: 2})
    walking = RandomResize(step=1, interval=0.001, min=1, max=2, changes=1)
    for _ in range(2):
        job: Any = Job(1)
        growing.on_metric(job, metric(3.0))
        assert job.asked == [1]
        walking.on_event(job, Event(kind="resized", host="supervisor"))
        walking._thread.join(10)  # type: ignore[union-attr]
        assert job.asked == [1, "new-0"]
        for callback in (growing, walking):
            callback.on_end(job)
    with pytest.raises(ConfigurationError, match=r"hosts cannot change"):
        growing.on_event(SimpleNamespace(record=record_of(MPI())), Event(kind="phase", host="caller"))  # type: ignore[arg-type]


def walked(job: Any, **arguments: Any) -> list[int]:
    """The sizes of a random walk, when it is over."""
    callback = RandomResize(step=1, interval=0.001, min=1, **arguments)
    callback.on_event(job, Event(kind="resized", host="supervisor"))
    callback._thread.join(10)
    return callback.sizes


def test_a_random_walk_makes_its_changes() -> None:
    sizes = walked(Job(2), max=3, seed=4, changes=20)
    assert len(sizes) == 20 and {1, 3} <= set(sizes)
    assert walked(Job(2), max=3, seed=4, changes=20) == sizes


def test_hosts_that_leave_are_not_counted() -> None:
    job: Any = Job(4)
    job.leaving = {"algo-4"}
    assert resize(job, 2)
    assert job.asked == ["algo-3"]


def test_what_is_refused_is_tried_again_and_the_end_is_no_error() -> None:
    job: Any = Ending(1)
    job.refuses = 1
    assert not resize(job, 2)
    job.record = Job.record
    job.refuses = 1
    with pytest.raises(ConfigurationError):
        resize(job, 2)
    job.refuses = 2
    assert walked(job, max=2, changes=1) == [2] and job.refuses == 0


@pytest.mark.parametrize("arguments", [{"step": 0}, {"min": 3, "max": 3}, {"interval": 0}])
def test_what_makes_no_walk_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="RandomResize"):
        RandomResize(**arguments)


@pytest.mark.parametrize(
    ("callback", "strategy", "words"),
    [
        (GrowWithEpochs({30: 4, 60: 9}), ElasticHorovod(max_hosts=8), "cannot have 9 hosts.* allows 1 to 8 hosts"),
        (GrowWithEpochs({30: 1}), ElasticHorovod(min_hosts=2), "cannot have 1 hosts.* allows 2 to 2 hosts"),
        (GrowWithEpochs({30: 1}), MPI(), r"GrowWithEpochs: .* hosts cannot change\. Use"),
        (RandomResize(), MPI(), r"RandomResize: .* hosts cannot change\. Use"),
    ],
)
def test_what_the_job_cannot_do_is_refused_at_its_first_event(
    callback: Callback, strategy: Distribution, words: str
) -> None:
    job: Any = SimpleNamespace(record=record_of(strategy))
    with pytest.raises(ConfigurationError, match=words):
        callback.on_event(job, Event(kind="phase", host="caller"))


def test_what_is_no_growth_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="GrowWithEpochs"):
        GrowWithEpochs({3: 0})


class Nodes:
    """Something else that hosts come and go with."""

    def __init__(self, size: int) -> None:
        self.sizes = [size]

    def size(self, job: Any) -> int:
        return self.sizes[-1]

    def resize(self, job: Any, size: int) -> bool:
        self.sizes.append(size)
        return len(self.sizes) < 4


def test_what_hosts_come_and_go_with_is_resized_in_place_of_the_job() -> None:
    job: Any = Job(2)
    nodes = Nodes(4)
    RandomResize(interval=0.001, min=1, max=4, hosts=nodes)._run(job, threading.Event())
    assert len(nodes.sizes) == 4 and nodes.sizes[:2] == [4, 3], "it ends when there is nothing to resize any more"
    grown = Nodes(1)
    growing = GrowWithEpochs({2: 3}, hosts=grown)
    for epoch in (1, 2, 3):
        growing.on_metric(job, metric(epoch))
    assert grown.sizes == [1, 3] and job.asked == []
