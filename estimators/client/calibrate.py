"""The short runs that a calibration is made of."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from container.contract.strategies import MPI, CollectiveAllReduce, ParameterServer
from estimators.client.compare import compare
from estimators.client.estimator import TensorFlow
from estimators.job.fleets import DEFAULT
from estimators.results.advice.calibration import Observation
from estimators.results.comparison.comparison import Comparison
from estimators.results.result import Result

#: Perceptrons: 0.1 and 5.0 million parameters to fit to, 1.3 million to check by.
SMALL, LARGE, BETWEEN = "64,300,256,10", "512,1152,2048,1000,10", "256,1024,900,100,10"
#: What the probe reports of each model.
_REPORTED = ("gradient_bytes", "step_s", "own_s")

_SCRIPT = """\
import sys

from container.distributed.tensorflow import probe

probe.main(probe.parse_arguments(sys.argv[1:]))
"""


def estimator(
    strategy: str,
    processes: int,
    models: Sequence[str],
    *,
    source_dir: str,
    instance_type: str = DEFAULT,
    seconds: float = 0.6,
    batch_size: int = 32,
    **arguments: Any,
) -> TensorFlow:
    """Return an estimator of the probe: each process is a host of its own.

    Args:
        strategy: ``mpi``, ``collective_all_reduce`` or ``parameter_server``.
        processes: How many.
        models: Units of each perceptron's layers.
        source_dir: A folder with the script, from :func:`script`.
        instance_type: Where.
        seconds: Of timed steps of each model.
        batch_size: Records of each process's step.
        arguments: More of the estimator's.
    """
    kinds: dict[str, Any] = {
        "mpi": MPI(),
        "collective_all_reduce": CollectiveAllReduce(communication="ring"),
        "parameter_server": ParameterServer(),
    }
    return TensorFlow(
        **{
            "entry_point": "probe.py",
            "source_dir": source_dir,
            "instance_count": processes,
            "instance_type": instance_type,
            "distribution": kinds[strategy],
            "hyperparameters": {"layers": "/".join(models), "seconds": seconds, "batch-size": batch_size},
            "model_dir": False,
            "base_job_name": "calibrate",
            **arguments,
        }
    )


@contextmanager
def script() -> Iterator[str]:
    """A folder with the probe's script."""
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        Path(folder, "probe.py").write_text(_SCRIPT, encoding="utf-8")
        yield folder


def measure(
    strategies: Sequence[str],
    counts: Sequence[int],
    models: Sequence[str],
    *,
    instance_type: str = DEFAULT,
    seconds: float = 0.6,
    alone: bool = False,
) -> Comparison:
    """Run the probe under each strategy with each number of processes, one job after another.

    Args:
        strategies: Which.
        counts: How many processes.
        models: Units of each perceptron's layers; a job trains all of them.
        instance_type: Where.
        seconds: Of timed steps of each model.
        alone: Whether to run one process by itself, too.
    """
    with script() as folder:
        settings: dict[str, Any] = {"source_dir": folder, "instance_type": instance_type, "seconds": seconds}
        runs: dict[str, TensorFlow] = {}
        if alone:  # it exchanges nothing, so what is always there will do
            runs["alone"] = estimator("collective_all_reduce", 1, models, **settings)
        for processes in counts:
            for strategy in strategies:
                runs[f"{strategy} × {processes}"] = estimator(strategy, processes, models, **settings)
        return compare(runs)


def observations(comparison: Comparison) -> tuple[Observation, ...]:
    """Return what the completed runs measured."""
    return tuple(
        one for group in comparison.groups for result in group.completed for one in observations_of(result)
    )  # fmt: skip


def observations_of(result: Result) -> list[Observation]:
    """What one run of the probe measured, model by model: the median over the ranks. Pure.

    Every rank reports the models in the same order.
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
