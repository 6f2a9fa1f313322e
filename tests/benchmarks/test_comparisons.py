"""What the single benchmarks make of their numbers, without running any of them."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import checkpoint, harness, steps, strategies
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
    assert parser.parse_args([]).seconds is None


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


def test_processes_by_hand_report_what_failed() -> None:
    talk = "import os, sys; sys.exit(os.environ['TF_CONFIG'])"
    variables = steps.tf_config({"worker": ["a:1", "b:2"]}, "worker", 1)
    with pytest.raises(RuntimeError, match=r'worker 1, by hand, ended with 1:\n.*"index": 1'):
        steps.run_processes([("worker 1", [sys.executable, "-c", talk], variables)])


def test_processes_by_hand_that_never_end_are_ended_with_the_first(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    serve = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(600)"
    wait = f"import os, time\nwhile not os.path.exists({str(mark)!r}): time.sleep(0.01)"
    steps.run_processes(
        [("chief", [sys.executable, "-c", wait], {}), ("ps", [sys.executable, "-c", serve], {})], end_with_first=True
    )


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
        "small samples_per_second": 1234.4,
        "small step_s": 0.05,
        "larger samples_per_second": 50.0,
        "larger step_s": 1.0,
    }
    rows = strategies.rows_of({"mpi × 4": [numbers] * 3})
    text = strategies.table(rows, cores=2)
    assert "| strategy × processes | 0.1 M parameters | 5.0 M parameters |" in text
    small, larger = "1,234 samples/s (1,234 to 1,234), step 50.0 ms", "50 samples/s (50 to 50), step 1,000.0 ms"
    assert f"| mpi × 4 | {small} | {larger} |" in text
    assert "4 processes share 2 cores" in text
    assert "share" not in strategies.table(rows, cores=8)


def test_a_table_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "TABLE", tmp_path / "RESULTS.md")
    quiet = harness.Quiet(0.0)
    quiet.wait(0.01)
    assert quiet.was_quiet()
    harness.record("one", [], {"x": 1}, quiet, table="| mine |")
    assert "| mine |" in capsys.readouterr().out
    assert "| mine |\n\n2" in (tmp_path / "RESULTS.md").read_text()
    assert json.loads((tmp_path / "results" / "one.json").read_text())["samples"] == {"x": 1}
