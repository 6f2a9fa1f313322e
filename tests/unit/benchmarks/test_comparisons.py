"""What the single benchmarks make of their numbers, without running any of them."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import allreduce, checkpoint, containers, harness, peers, steps, strategies
from benchmarks.harness import Numbers
from estimators import MPI, CollectiveAllReduce, ParameterServer


@pytest.mark.parametrize("name", program.BENCHMARKS)
def test_every_name_is_of_a_function(name: str) -> None:
    module, function = program.BENCHMARKS[name]
    assert callable(getattr(importlib.import_module(module), function))


def test_options_of_all() -> None:
    parser = argparse.ArgumentParser()
    harness.add_arguments(parser)
    options = parser.parse_args(["--alternations", "2", "--seconds", "1.5", "--dry"])
    assert (options.alternations, options.seconds, options.dry) == (2, 1.5, True)
    assert parser.parse_args(harness.words_of(options)) == options
    plain = parser.parse_args([])
    assert plain.seconds is None and parser.parse_args(harness.words_of(plain)) == plain


def _speed(rate: float, median_step_s: float) -> Numbers:
    return {"steps_per_second": rate, "median_step_s": median_step_s}


def test_ratios_are_by_round_and_ours_over_theirs() -> None:
    values = {
        "by hand": [_speed(100.0, 0.010), _speed(50.0, 0.020), _speed(100.0, 0.010)],
        "fit()": [_speed(99.0, 0.010), _speed(50.0, 0.025), _speed(110.0, 0.008)],
    }
    rate, median = steps.rows("x", values)
    assert rate.estimate.value == 1.0
    assert median.estimate.value == 1.0
    assert (median.estimate.low, median.estimate.high) == pytest.approx((0.8, 1.25))
    assert rate.bar is not None and rate.bar.at_least
    assert rate.beside == {"by hand, steps/s": 100.0, "fit(), steps/s": 99.0}


def test_a_burst_moves_few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(steps.SCRIPTS))
    timing = importlib.import_module("timing")
    steady = [0.01] * 500
    assert timing.windows([*steady, 4.0, *steady], 1.0) == pytest.approx([100.0] * 5 + [0.25] + [100.0] * 5, rel=0.02)
    assert timing.windows([0.25] * 2, 1.0) == [4.0]


def test_the_cost_of_checkpoints_is_a_share_of_the_step() -> None:
    with_saves = [{"step, ms": 10.2}, {"step, ms": 10.0}]
    without = [{"step, ms": 10.0}, {"step, ms": 10.0}]
    assert checkpoint.share(with_saves, without) == pytest.approx([2.0, 0.0])


class Model:
    """As much of a model as a block needs."""

    stop_training = False


def test_a_block_counts_the_steps_between_its_lead_and_its_end() -> None:
    block = checkpoint.Block(lambda step: step == 7)
    block.set_model(Model())
    for batch in range(100):
        block.on_train_batch_begin(batch)
        if block.model.stop_training:
            break
    assert batch == checkpoint._LEAD + 7
    assert block.steps == 7
    assert block.seconds > 0


def test_models_are_as_large_as_the_tables_say() -> None:
    tree = ast.parse((harness.HERE / "scripts" / "train_strategies.py").read_text())
    [models] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODELS"
    ]
    assert {
        name: f"{checkpoint.Size(layers).parameters / 1e6:.1f} M parameters" for name, layers in models.items()
    } == strategies.MODELS
    assert tuple(checkpoint.Size(layers) for layers in models.values()) == checkpoint.SIZES


@pytest.mark.parametrize("processes", strategies.PROCESSES)
def test_each_strategy_has_the_processes_that_the_table_says(processes: int) -> None:
    assert strategies.where("mpi", processes) == (1, MPI(processes_per_host=processes))
    assert strategies.where("collective_all_reduce", processes) == (
        1,
        CollectiveAllReduce(processes_per_host=processes, communication="ring"),
    )
    assert strategies.where("parameter_server", processes) == (processes, ParameterServer())


def test_strategies_side_by_side() -> None:
    numbers = {
        **{f"small samples_per_second {epoch}": 1234.4 for epoch in (1, 2, 3)},
        "small step_s": 0.05,
        **{f"larger samples_per_second {epoch}": 50.0 for epoch in (1, 2, 3)},
        "larger step_s": 1.0,
    }
    rows = strategies.rows_of({"mpi × 4": [numbers] * 2})
    text = strategies.table(rows, cores=2, rounds=2)
    assert "| strategy × processes | 0.1 M parameters | 5.0 M parameters |" in text
    small, larger = "1,234 samples/s (1,234 to 1,234), step 50.0 ms", "50 samples/s (50 to 50), step 1,000.0 ms"
    assert f"| mpi × 4 | {small} | {larger} |" in text
    assert "Medians of 6 timed epochs, of 2 rounds" in text
    assert "4 processes share 2 cores" in text
    assert "share" not in strategies.table(rows, cores=8, rounds=2)


# --- all-reduce, peers ---


def test_bus_bandwidth_is_held_against_a_rings_bound() -> None:
    assert allreduce.bus_bandwidth(1 << 20, 0.5, ranks=2) == pytest.approx((1 << 20) / 0.5)
    assert allreduce.bus_bandwidth(100, 1.0, ranks=4) == pytest.approx(150)


def test_bandwidths_stand_beside_the_loopbacks() -> None:
    rounds = [{str(size): float(size) for size in allreduce.SIZES}] * 2
    values = {"Horovod, MPI": rounds, "loopback": [{str(size): 2.0 * allreduce.SIZES[-1] for size in allreduce.SIZES}]}
    found = allreduce.rows_of(values)
    assert len(found) == len(allreduce.SIZES)
    assert found[-1].beside["÷ loopback"] == pytest.approx(0.5)
    assert allreduce.table(values).count("\n") == 3
    *_, last = allreduce.table(values, {"Horovod, Gloo": "no route"}).splitlines()
    assert last.startswith("| Horovod, Gloo | failed: no route |") and last.count("|") == 2 + len(allreduce.SIZES)
    assert allreduce._shown({str(4 << 20): 5e8}) == "4 MB 500 MB/s"


def test_peers_stand_beside_each_other() -> None:
    values = {"fleetfit": [{"seconds": 0.5}], "torchrun": [{"seconds": 1.5}], "Ray Train": [{"seconds": 5.0}]}
    found = peers.rows_of("launch", values)
    assert [row.estimate.value for row in found] == [0.5, 1.5, 5.0]
    assert found[0].beside == {"torchrun": 1.5, "Ray Train": 5.0}


def _timed(*seconds: float) -> list[Numbers]:
    return [{"seconds": value} for value in seconds]


def test_the_table_of_peers_says_where_one_wins_and_where_one_failed() -> None:
    measured = {
        "launch": {"fleetfit": _timed(0.3, 0.4), "torchrun": _timed(1.5, 1.6), "Ray Train": _timed(5, 6)},
        "failure": {"fleetfit": _timed(0.5, 0.6), "torchrun": _timed(0.1, 0.2)},
        "kill": {way: [{"left": 0.0}] * 2 for way in ("fleetfit", "torchrun")},
    }
    failed = {"failure": {"Ray Train": "boom"}, "containers": {peers.OFFICIAL_NAME: "no image"}}
    head, _, launch, failure, kill, containers, _, meaning = peers.table(measured, failed).splitlines()
    assert head == "| less is better | fleetfit | torchrun | Ray Train | SageMaker's local mode | best |"
    assert launch.endswith("| 0.35 (0.3 to 0.4) | 1.55 (1.5 to 1.6) | 5.5 (5 to 6) | – | fleetfit |")
    assert failure.endswith("| failed: boom | – | **torchrun** |")
    assert kill.endswith("| no difference seen |")
    assert containers.endswith("| – | – | – | not measured: no image | – |")
    assert "bold" in meaning
    # While it runs, each row by itself.
    assert peers.table({"kill": measured["kill"]}, failed, head=False).count("\n") == 0


def test_what_intervals_do_not_tell_apart_is_best_together() -> None:
    values = {"a": _timed(1.0, 1.2), "b": _timed(1.1, 1.3), "c": _timed(2.0, 2.1)}
    assert peers.best(values, "seconds") == ["a", "b"]
    assert peers.best({}, "seconds") == []


def test_what_the_engine_and_its_containers_used_is_no_others_work(tmp_path: Path) -> None:
    old, new, processes = tmp_path / "1", tmp_path / "2", tmp_path / "proc"
    (old / "cpuacct/docker").mkdir(parents=True)
    (old / "cpuacct/docker/cpuacct.usage").write_text("2500000000\n")
    (new / "docker").mkdir(parents=True)
    (new / "docker/cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\n")
    for number, name in enumerate(("dockerd", "python3")):
        (processes / str(number)).mkdir(parents=True)
        (processes / str(number) / "comm").write_text(f"{name}\n")
        (processes / str(number) / "stat").write_text(f"{number} (a) b) S {' '.join(['0'] * 10)} 100 50 0 50 9\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert containers.engine_seconds(old, processes) == 2.5 + 200 / ticks
    assert containers.engine_seconds(new, processes) == 1.5 + 200 / ticks
    assert containers.engine_seconds(tmp_path, tmp_path / "none") == 0
    values = iter([1.0, 3.0])
    share = harness.OthersShare(lambda: next(values))
    assert 0 <= share() < 1


def test_containers_are_held_against_the_official_sdk_of_the_same_round_or_its_figure() -> None:
    def seconds(*values: float) -> list[Numbers]:
        return [{"seconds": value, "first line": value / 4} for value in values]

    values = {"docker run": seconds(1.5, 1.7, 1.6), "fit()": seconds(2.0, 4.0, 2.0), "warm fit()": seconds(1.6, 1.6, 2)}
    alone, against_docker, warm = containers.rows_of(values, "docker-compose is not installed")
    assert "3.1 s (docker-compose is not installed)" in alone.what
    assert alone.estimate.value == pytest.approx(2.0 / 3.1)
    assert against_docker.estimate.value == pytest.approx(0.5) and warm.estimate.value == pytest.approx(0.4)
    values["the official SDK's fit()"] = seconds(5.0, 8.0, 4.0)
    values["the official SDK's fit() of our image"] = seconds(4.0, 5.0, 4.0)
    beside, ours, *_ = containers.rows_of(values)
    assert beside.estimate.value == pytest.approx(0.5) and beside.bar is not None and beside.bar.limit == 0.5
    assert ours.estimate.value == pytest.approx(0.5) and ours.bar is None


def test_the_local_mode_is_left_out_where_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "OFFICIAL", tmp_path)
    assert "not installed" in (peers._no_containers() or "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peers._no_containers() == "docker-compose is missing"
