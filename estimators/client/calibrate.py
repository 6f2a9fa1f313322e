"""Run the short trainings with which ``fleetfit calibrate`` measures the cost of each strategy."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from container.contract.strategies import MPI, CollectiveAllReduce, Distribution, ParameterServer
from estimators.client.compare import compare
from estimators.client.estimator import TensorFlow
from estimators.job.fleets import DEFAULT
from estimators.results.advice.calibration import Observation
from estimators.results.comparison.comparison import Comparison
from estimators.results.result import Result

#: Numbers of units of each layer of the trained perceptrons. The calibration is fitted to the models with 0.1 and 5.0
#: million parameters, and checked with the model with 1.3 million parameters.
SMALL, LARGE, BETWEEN = "64,300,256,10", "512,1152,2048,1000,10", "256,1024,900,100,10"
#: Metrics that the probe, the script of these trainings, reports for each model.
_REPORTED = ("gradient_bytes", "step_s", "own_s")
#: Number of records in a step of one process.
_BATCH_SIZE = 32
_STRATEGIES: dict[str, Distribution] = {
    "mpi": MPI(),
    "collective_all_reduce": CollectiveAllReduce(communication="ring"),
    "parameter_server": ParameterServer(),
}

_SCRIPT = """\
import sys

from container.distributed.tensorflow import probe

probe.main(probe.parse_arguments(sys.argv[1:]))
"""


def measure(
    strategies: Sequence[str],
    counts: Sequence[int],
    models: Sequence[str],
    *,
    instance_type: str = DEFAULT,
    seconds: float = 0.6,
    alone: bool = False,
) -> Comparison:
    """Run a short training script, the probe, with each strategy and number of processes, and compare the runs.

    The jobs run one after another. Each job trains all perceptrons. Each host has one process.

    Args:
        strategies: The strategies: ``mpi``, ``collective_all_reduce`` or ``parameter_server``.
        counts: The numbers of processes.
        models: The perceptrons. Each text lists the number of units of each layer, such as ``64,300,10``.
        instance_type: The instance type of the hosts.
        seconds: The duration of the timed steps of each model, in seconds.
        alone: Whether to also run a job with a single process.
    """
    runs = {f"{strategy} × {processes}": (strategy, processes) for processes in counts for strategy in strategies}
    if alone:  # the strategy makes no difference to a single process: use one that needs no other software
        runs = {"alone": ("collective_all_reduce", 1), **runs}
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        Path(folder, "probe.py").write_text(_SCRIPT, encoding="utf-8")
        return compare(
            {
                name: TensorFlow(
                    entry_point="probe.py",
                    source_dir=folder,
                    instance_count=processes,
                    instance_type=instance_type,
                    distribution=_STRATEGIES[strategy],
                    hyperparameters={"layers": "/".join(models), "seconds": seconds, "batch-size": _BATCH_SIZE},
                    model_dir=False,
                    base_job_name="calibrate",
                )
                for name, (strategy, processes) in runs.items()
            }
        )


def observations(comparison: Comparison) -> tuple[Observation, ...]:
    """Return the measurements of all completed runs of a comparison."""
    return tuple(
        one for group in comparison.groups for result in group.completed for one in observations_of(result)
    )  # fmt: skip


def observations_of(result: Result) -> list[Observation]:
    """Return the measurements of one run, one for each model.

    Each measurement is the median of all ranks' values. Every rank reports the models in the same order.
    """
    by_rank: dict[int | None, dict[str, list[float]]] = {}
    for point in result.series:
        if point.name in _REPORTED:
            by_rank.setdefault(point.rank, {}).setdefault(point.name, []).append(point.value)
    ranks = list(by_rank.values())
    if not ranks:
        return []
    found = []
    for number, size in enumerate(ranks[0]["gradient_bytes"]):
        steps, own = (
            [rank[name][number] for rank in ranks if len(rank.get(name, ())) > number] for name in ("step_s", "own_s")
        )
        found.append(
            Observation(
                strategy=result.strategy or "none",
                processes=result.processes,
                gradient_bytes=size,
                step_s=statistics.median(steps),
                own_s=statistics.median(own) if own else None,
            )
        )
    return found
