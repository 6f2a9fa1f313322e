"""A job's result, from its events."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import result, status, training

from container.contract.durations import Durations
from container.contract.wire import Event
from estimators.job import instances
from estimators.job.errors import RecordError
from estimators.records.elastic_events import Telling
from estimators.results.comparison.comparison import Comparison, Group
from estimators.results.result import FORMAT, Result
from estimators.results.summary import bytes_text, count_text, time_text


def test_steps_samples_and_their_distribution() -> None:
    found = result(step_s=0.02, steps=50, batch_size=64)
    assert found.steps == 150
    assert found.steps_per_second == pytest.approx(50)
    assert found.samples_per_second == pytest.approx(3200)
    assert found.global_batch_size == 64
    assert found.step_times.count == 300  # of both ranks
    assert found.step_times.quantile(0.5) == pytest.approx(0.02, rel=0.02)


def test_messages_are_held_against_the_bound_of_a_ring() -> None:
    found = result(hosts=2, waits_s=(0.004, 0.008))
    assert found.reduced_bytes == 4_000_000
    assert found.link_bytes == pytest.approx(2 * (2 - 1) / 2 * 4_000_000)
    assert found.exchange_s == pytest.approx(0.004)  # the rank that waits least is the last to be ready
    assert found.bus_bandwidth == pytest.approx(4_000_000 / 0.004)


def test_parameter_servers_reduce_nothing_but_read_and_send_all_weights() -> None:
    found = result("parameter_server")
    assert found.reduced_bytes is None and found.bus_bandwidth is None
    assert found.link_bytes == 8_000_000


def test_compressed_gradients_are_half_as_large() -> None:
    found = result()
    assert found.model is not None
    halved = dataclasses.replace(found, model=dataclasses.replace(found.model, compression="fp16"))
    assert halved.reduced_bytes == 2_000_000


def test_the_rank_that_others_wait_for_is_named() -> None:
    slow = result(step_s=0.1, waits_s=(0.05, 0.001)).straggler
    assert slow is not None and slow.rank == 1 and slow.host == "algo-2"
    assert result(step_s=0.1, waits_s=(0.05, 0.045)).straggler is None


def test_a_single_slow_epoch_makes_no_straggler() -> None:
    found = result(step_s=0.1, waits_s=(0.05, 0.05))
    ranks = (
        dataclasses.replace(found.ranks[0], epochs_own_s=(0.05, 0.05, 0.05)),
        dataclasses.replace(found.ranks[1], epochs_own_s=(0.9, 0.05, 0.049)),
    )
    assert dataclasses.replace(found, ranks=ranks).straggler is None


def test_memory_checkpoints_phases_and_parameters() -> None:
    found = result()
    assert found.peak_memory_bytes == 1001 << 10
    assert [rank.peak_memory_bytes for rank in found.ranks] == [1000 << 10, 1001 << 10]
    assert found.checkpointing is not None
    assert found.checkpointing.blocked_s == pytest.approx(0.3) and found.checkpointing.write_s == 1.5
    assert found.phases["launch"] == 1 and found.phases["teardown"] == 55
    assert found.model is not None and found.model.parameters == 1_000_100


def test_the_series_has_every_rank_and_the_samples_trained_on() -> None:
    frame = result(steps=50, batch_size=64).metrics()
    assert list(frame["rank"]) == [0, 1, 0, 1, 0, 1]
    assert list(frame["samples"])[::2] == [3200, 6400, 9600]
    assert list(frame["elapsed_s"])[::2] == pytest.approx([10.1, 20.1, 30.1])


def test_scaling_efficiency_against_one_process() -> None:
    alone = result(hosts=1, ranks=1, step_s=0.02, batch_size=32, waits_s=(0.0,))
    assert result(hosts=2, step_s=0.025, batch_size=64).efficiency(alone) == pytest.approx(0.8)


def test_cost_and_savings_as_sagemaker_reckons_them() -> None:
    found = result(hosts=2, instance_type="ml.p3.2xlarge")
    price = instances.describe("ml.p3.2xlarge")
    cost = found.cost()
    assert price is not None and price.on_demand is not None and cost is not None
    assert cost.total == pytest.approx(2 * 40 / 3600 * price.on_demand)
    assert cost.on_demand == pytest.approx(2 * 100 / 3600 * price.on_demand)
    assert found.spot_savings == pytest.approx(60)
    own = found.cost(per_hour=36.0)
    assert own is not None and own.total == pytest.approx(0.8) and own.source == "given by the user"
    assert result(instance_type="local_process").cost() is None
    with pytest.raises(ValueError, match="at least 0"):
        found.cost(per_hour=-1)


def test_it_is_saved_and_read_back_equal(tmp_path: Path) -> None:
    found = result()
    again = Result.load(found.save(tmp_path / "result.json"))
    assert again.to_dict() == found.to_dict()
    assert again.step_times.quantile(0.9) == found.step_times.quantile(0.9)
    assert again.summary() == found.summary()


def test_a_loss_that_diverged_is_kept_and_its_json_is_everybodys(tmp_path: Path) -> None:
    found = result()
    values = (math.nan, math.inf, -math.inf)
    series = [dataclasses.replace(point, value=value) for point, value in zip(found.series, values, strict=False)]
    found = dataclasses.replace(found, series=tuple(series), final_metrics={"loss": math.nan})
    again = Result.load(found.save(tmp_path / "result.json"))
    assert math.isnan(again.series[0].value) and [point.value for point in again.series[1:]] == [math.inf, -math.inf]
    assert math.isnan(again.final_metrics["loss"])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)


@pytest.mark.parametrize("values", [[], {}, {"format": "1"}, {"format": FORMAT}, {"format": FORMAT, "ranks": [3]}])
def test_what_is_no_result_is_refused(tmp_path: Path, values: object) -> None:
    (tmp_path / "result.json").write_text(json.dumps(values))
    with pytest.raises(RecordError):
        Result.load(tmp_path)


def test_a_newer_format_is_refused_in_words() -> None:
    with pytest.raises(RecordError, match="newer fleetfit"):
        Result.from_dict({**result().to_dict(), "format": FORMAT + 1})


def test_a_job_that_reports_nothing_has_a_result_all_the_same() -> None:
    found = result(None, events=[], state=status("Failed", FailureReason="boom"))
    assert found.summary()["samples_per_second"] is None
    assert found.straggler is None and found.failure_reason == "boom"
    assert "boom" in found._repr_html_()
    assert found.metrics().empty


def test_an_event_of_a_later_version_or_a_damaged_one_does_no_harm() -> None:
    events = training()
    broken = [dataclasses.replace(event, data={"name": "x", "durations": [1]}) for event in events]
    assert result(events=broken).steps_per_second is None


def test_the_html_says_what_is_known() -> None:
    page = result(step_s=0.1, waits_s=(0.05, 0.001))._repr_html_()
    for part in ("rank 1 on algo-2", "1 M parameters", "samples/s", "peak memory", "$"):
        assert part in page


def test_it_shows_itself_in_a_line_and_as_the_jobs_table() -> None:
    assert repr(result()) == "<Result of 'digits-1': Completed>"  # not every value of every metric
    assert "digits-1  Completed" in str(result()) and "training 36.0 s" in str(result())


# --- durations ---


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200))
def test_quantiles_are_within_a_bucket_of_the_true_ones(values: list[float]) -> None:
    found = Durations()
    for value in values:
        found.add(value)
    ordered = sorted(values)
    for share in (0.1, 0.5, 0.9, 1.0):
        true = ordered[max(0, math.ceil(share * len(values)) - 1)]
        assert found.quantile(share) == pytest.approx(true, rel=0.036)
    assert found.longest_s == max(values)


@given(st.lists(st.floats(0, 100), max_size=50), st.lists(st.floats(0, 100), max_size=50))
def test_distributions_add_up(one: list[float], other: list[float]) -> None:
    parts = []
    whole = Durations()
    for values in (one, other):
        part = Durations()
        for value in values:
            part.add(value)
            whole.add(value)
        parts.append(Durations.from_dict(json.loads(json.dumps(part.to_dict()))))
    both = Durations.sum(parts)
    assert both.count == whole.count and both.bars() == whole.bars()
    assert both.quantile(0.5) == pytest.approx(whole.quantile(0.5) or 0, rel=1e-3, abs=1e-6) or not both.count


# --- texts ---


def test_texts() -> None:
    assert [bytes_text(n) for n in (None, 0, 999, 1500, 2.5e9)] == ["–", "0 B", "999 B", "1.5 kB", "2.5 GB"]
    assert [count_text(n) for n in (23_946, 138_357_544)] == ["23.9 k", "138 M"]
    assert [time_text(s) for s in (None, 0.0002, 0.0123, 2.0)] == ["–", "200 µs", "12.3 ms", "2.00 s"]


# --- the table of instance types ---


def test_every_offered_type_has_devices_where_it_should() -> None:
    for name in instances.offered():
        found = instances.describe(name)
        assert found is not None and found.network_gbps
        assert bool(found.device) == bool(found.gpus), name
        assert found.slots, name
    assert instances.describe("local_process") is None


def test_the_moments_of_an_elastic_job() -> None:
    def event(kind: str, second: float, rank: int | None = None, **data: object) -> Event:
        return Event(kind=kind, host="algo-1", time_ns=int((1000 + second) * 1e9), rank=rank, data=data)

    happened = [
        event("resized", 1, before=0, size=2, joined=["a", "b"], left=[]),
        event("commit", 2, 0, step=10, every=5),
        event("restored", 3, 0, step=10, steps_lost=2),
        event("restored", 3.1, 1, step=10, steps_lost=2),  # another rank of the same restore
        event("host_excluded", 3.2, name="algo-2", seconds=1.0),
        event("resized", 4, before=2, size=2, joined=["c"], left=["b"]),
        event("restored", 5, 0, step=10, steps_lost=0),  # the same step, but another restore
    ]
    found = result(events=[*training(), *happened])
    assert [(moment.kind, moment.elapsed_s, moment.text) for moment in found.moments] == [
        ("committed", 2, "step 10 is committed; commits are 5 steps apart"),
        ("restored", 3, "back to the last commit, step 10: 2 steps to train again"),
        ("excluded", pytest.approx(3.2), "algo-2 is excluded for 1.0 s"),
        ("joined", 4, "c joined"),
        ("left", 4, "b left"),
        ("resized", 4, "2 → 2"),
        ("restored", 5, "back to the last commit, step 10: nothing is lost"),
    ]
    assert Result.from_dict(json.loads(found.to_json())).moments == found.moments
    drawn = Comparison([Group(name="one", results=(found,))]).plot("curves", metrics=["loss"], against="time")
    [axes] = drawn.figure.axes
    marks = [(line.get_label(), line.get_xdata()[0]) for line in axes.get_lines() if line.get_gid() == "moment"]
    assert [at for _, at in marks] == [moment.elapsed_s for moment in found.moments]
    assert {name for name, _ in marks} >= {"committed", "restored", "excluded", "joined", "left", "resized"}


def test_the_log_tells_every_restore_and_new_intervals_of_commits() -> None:
    def event(kind: str, rank: int, **data: int) -> Event:
        return Event(kind=kind, host="algo-1", time_ns=0, rank=rank, data=data)

    telling = Telling()
    lines = [
        telling.line(one)
        for one in (
            event("commit", 0, step=1, every=10),
            event("commit", 0, step=11, every=12),
            event("commit", 0, step=40, every=40),
            event("restored", 0, step=40, steps_lost=1),
            event("restored", 1, step=40, steps_lost=1),
            event("metric", 0),
        )
    ]
    assert lines == [
        "step 1 is committed; commits are 10 steps apart",
        None,
        "step 40 is committed; commits are 40 steps apart",
        "back to the last commit, step 40: 1 step to train again",
        None,
        None,
    ]
