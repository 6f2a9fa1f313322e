"""The three strategies side by side through ``fit()``: one script, two models, 1 to 4 processes."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, steps
from benchmarks.harness import Numbers, Quiet, Row, median_with_interval
from estimators import MPI, CollectiveAllReduce, ParameterServer, TensorFlow

_SCRIPT = harness.HERE / "scripts" / "train_strategies.py"
#: Model of the script -> what the table calls it.
MODELS = {"small": "0.1 M parameters", "larger": "5.0 M parameters"}
STRATEGIES = ("mpi", "collective_all_reduce", "parameter_server")
PROCESSES = (1, 2, 3, 4)
_RATE = "samples_per_second"
#: The timed part of each model, in seconds, and how often each way runs: nearly all of the time goes into starts.
_SECONDS = 2.0
_ROUNDS = 2


def where(strategy: str, processes: int) -> tuple[int, Any]:
    """The hosts and the distribution that give a strategy so many ranks, or workers.

    Parameter servers have one worker for each host, and one server beside it.
    """
    if strategy == "mpi":
        return 1, MPI(processes_per_host=processes)
    if strategy == "collective_all_reduce":
        return 1, CollectiveAllReduce(processes_per_host=processes, communication="ring")
    return processes, ParameterServer()


def _measure(strategy: str, processes: int, seconds: float, result: Path) -> Numbers:
    hosts, distribution = where(strategy, processes)
    steps.fit_quietly(
        TensorFlow(
            entry_point=_SCRIPT.name,
            source_dir=str(_SCRIPT.parent),
            instance_count=hosts,
            instance_type="local_process",
            distribution=distribution,
            hyperparameters={"seconds": seconds, "result": str(result)},
        )
    )
    found = json.loads(result.read_text())
    result.unlink()
    numbers: dict[str, float] = {}
    for model, of_model in found.items():
        for epoch, rate in enumerate(of_model["samples_per_second"], start=1):
            numbers[f"{model} {_RATE} {epoch}"] = float(rate)
        numbers[f"{model} step_s"] = float(of_model["step_s"])
    return numbers


def _rates(model: str, rounds: Sequence[Numbers]) -> list[float]:
    """A model's samples per second: of each timed epoch of each round."""
    return [value for numbers in rounds for name, value in numbers.items() if name.startswith(f"{model} {_RATE} ")]


def rows_of(values: Mapping[str, Sequence[Numbers]]) -> dict[str, dict[str, Row]]:
    """The results.

    Args:
        values: Way -> its numbers by round.

    Returns:
        Way -> model -> line of the results.
    """
    return {
        way: {
            model: Row(
                what=f"{way}, {model}",
                estimate=median_with_interval(_rates(name, rounds)),
                unit="samples/s",
                beside={"step, ms": 1e3 * statistics.median(numbers[f"{name} step_s"] for numbers in rounds)},
            )
            for name, model in MODELS.items()
        }
        for way, rounds in values.items()
    }


def table(rows: Mapping[str, Mapping[str, Row]], cores: int, rounds: int) -> str:
    """The results as a table: a row for each way, a column for each model.

    Args:
        rows: Way -> model -> line of the results.
        cores: Of this machine.
        rounds: How often each way ran.
    """
    lines = [["strategy × processes", *MODELS.values()], ["---"] * (1 + len(MODELS))]
    for way, of_way in rows.items():
        cells = []
        for model in MODELS.values():
            found = of_way[model].estimate
            step_ms = of_way[model].beside["step, ms"]
            cells.append(
                f"{found.value:,.0f} samples/s ({found.low:,.0f} to {found.high:,.0f}), step {step_ms:,.1f} ms"
            )
        lines.append([way, *cells])
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    epochs = max(of_model.estimate.count for of_way in rows.values() for of_model in of_way.values())
    more = max(PROCESSES)
    shared = f" {more} processes share {cores} cores here, so they show no scaling." if more > cores else ""
    turns = f"{rounds} round" if rounds == 1 else f"{rounds} rounds"
    return (
        f"{text}\n\nMedians of {epochs} timed epochs, of {turns}, with their intervals; a batch of 64 for each "
        f"process.{shared} With parameter servers, processes are workers: each makes steps of its own, and a server "
        "and, on the first host, the chief compute beside it."
    )


def run(options: argparse.Namespace) -> None:
    """Measure and record; when it is cut (Ctrl-C, SIGTERM), the rounds that are over."""
    rounds = options.alternations or _ROUNDS
    values: dict[str, list[Numbers]] = {}
    quiet = Quiet(options.patience)
    with (
        harness.own_home(),
        tempfile.TemporaryDirectory(prefix="bench-fleetfit-") as folder,
        harness.terminable(),
    ):
        result = Path(folder) / "result.json"

        def way(strategy: str, processes: int) -> Numbers:
            return _measure(strategy, processes, options.seconds or _SECONDS, result)

        ways = {
            f"{strategy} × {processes}": lambda strategy=strategy, processes=processes: way(strategy, processes)
            for strategy in STRATEGIES
            for processes in PROCESSES
        }
        try:
            harness.alternate(
                rounds,
                ways,
                quiet,
                warm_up=0,
                show=lambda numbers: f"{statistics.median(_rates('larger', [numbers])):,.0f} samples/s",
                values=values,
            )
        finally:
            if done := min(map(len, values.values()), default=0):
                rows = rows_of(values)
                harness.record(
                    "strategies",
                    [row for of_way in rows.values() for row in of_way.values()],
                    {name: [dict(numbers) for numbers in of_way] for name, of_way in values.items()},
                    quiet,
                    dry=options.dry,
                    table=table(rows, len(os.sched_getaffinity(0)), done),
                )
