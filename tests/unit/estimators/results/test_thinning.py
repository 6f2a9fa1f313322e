"""Results of jobs with very many values stay small."""

from __future__ import annotations

import itertools

from container.contract.wire import Event
from estimators.job.metrics import FinalMetrics
from estimators.results.thinning import thin


def metric(name: str, value: int, rank: int = 0) -> Event:
    return Event(kind="metric", host="algo-1", time_ns=value, rank=rank, data={"name": name, "value": float(value)})


def of(events: list[Event], name: str, rank: int = 0) -> list[float]:
    return [event.data["value"] for event in events if event.data.get("name") == name and event.rank == rank]


def test_few_values_are_all_kept_in_their_order() -> None:
    events = [metric("loss", 1), Event(kind="steps", host="algo-1", time_ns=2), metric("accuracy", 3)]
    assert thin(events) == (events, 0)


def test_of_many_values_evenly_distributed_ones_are_kept_and_the_others_counted() -> None:
    def events() -> list[Event]:
        return [
            *(metric("loss", value, rank) for value in range(10_000) for rank in (0, 1)),
            *(metric("accuracy", value) for value in range(20)),
            Event(kind="phase", host="algo-1", time_ns=99, data={"name": "job_ended"}),
        ]

    kept, left_out = thin(iter(events()), most=1000)
    assert len(kept) <= 1000 + 4 and len(kept) + left_out == 20_021
    assert of(kept, "accuracy") == [float(value) for value in range(20)] and kept[-1].kind == "phase"
    for rank in (0, 1):
        values = of(kept, "loss", rank)
        assert values[0] == 0.0 and values[-1] == 9999.0 and len(values) > 200
        assert len({after - before for before, after in itertools.pairwise(values[:-1])}) == 1
    assert [event.time_ns for event in kept if event.kind == "metric" and event.rank == 0] == sorted(
        event.time_ns for event in kept if event.kind == "metric" and event.data["name"] == "loss" and event.rank == 0
    ) + list(range(20))
    whole, thinned = FinalMetrics(), FinalMetrics()
    for event in events():
        whole.add(event)
    for event in kept:
        thinned.add(event)
    assert {item["MetricName"]: item["Value"] for item in thinned.to_list()} == {
        item["MetricName"]: item["Value"] for item in whole.to_list()
    }


def test_a_million_values_take_the_memory_of_those_that_are_kept() -> None:
    seen = 0
    most = 0
    alive: set[int] = set()

    class Counted(Event):
        def __del__(self) -> None:
            alive.discard(id(self))

    def events() -> object:
        nonlocal seen, most
        for value in range(50_000):
            event = Counted(kind="metric", host="algo-1", time_ns=value, rank=0, data={"name": "loss", "value": 1.0})
            alive.add(id(event))
            seen, most = seen + 1, max(most, len(alive))
            yield event

    kept, left_out = thin(events(), most=500)  # type: ignore[arg-type]
    assert seen == 50_000 and most < 600 and len(kept) + left_out == seen
