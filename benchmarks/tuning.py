"""What a tuning job costs, and what ASHA saves.

A hundred trials of a script that does nothing, two at a time, beside the same script a hundred times without anything;
and 64 trials on digits under ASHA: how many of all epochs are trained, and whether the best is found, which is known by
training all 64 to their end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from benchmarks.scripts import tune_digits

_SCRIPTS = harness.HERE / "scripts"
_TRIALS, _AT_ONCE = 100, 2
_OVERHEAD_BAR = 0.4

_SEARCHED = 64
_EPOCH_SECONDS = 0.15
_BUDGET_BAR = 0.35


def _bare() -> Numbers:
    """Seconds per run of the script alone."""
    argv = [sys.executable, str(_SCRIPTS / "empty.py")]
    start = time.time()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda _: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL), range(_TRIALS)))
    return {"trial": (time.time() - start) / _TRIALS}


def _tuned(folder: Path) -> Numbers:
    """Seconds per trial of the same script, with one more line, under a tuner."""
    from estimators import Estimator
    from estimators.tuner import ContinuousParameter, HyperparameterTuner

    code = (_SCRIPTS / "empty.py").read_text(encoding="utf-8")
    (folder / "train.py").write_text(f"{code}\nprint('score=1')\n", encoding="utf-8")
    tuner = HyperparameterTuner(
        Estimator(entry_point="train.py", source_dir=str(folder)),
        "score",
        {"x": ContinuousParameter(0.0, 1.0)},
        metric_definitions=[{"Name": "score", "Regex": "score=(.*)"}],
        strategy="Random",
        max_jobs=_TRIALS,
        max_parallel_jobs=_AT_ONCE,
    )
    start = time.time()
    _fit(tuner)
    assert tuner.describe()["TrainingJobStatusCounters"]["Completed"] == _TRIALS
    return {"trial": (time.time() - start) / _TRIALS}


def _asha(folder: Path) -> tuple[float, int, list[dict[str, Any]]]:
    """Return the share of all epochs that ASHA trained, the place of its best among all, and the trials."""
    import numpy as np
    from sklearn.datasets import load_digits

    from estimators import Estimator
    from estimators.tuner import ContinuousParameter, HyperparameterTuner, IntegerParameter

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    data = folder / "digits.npz"
    np.savez(data, x=x[order] / 16, y=y[order])
    tuner = HyperparameterTuner(
        Estimator(
            entry_point="tune_digits.py",
            source_dir=str(_SCRIPTS),
            hyperparameters={"data": str(data), "epoch-seconds": _EPOCH_SECONDS},
        ),
        "val_accuracy",
        {
            "rate": ContinuousParameter(1e-4, 1.0, "Logarithmic"),
            "momentum": ContinuousParameter(0.0, 0.95),
            "units": IntegerParameter(4, 64, "Logarithmic"),
        },
        metric_definitions=[{"Name": "val_accuracy", "Regex": "val_accuracy=(.*)"}],
        strategy="ASHA",
        max_jobs=_SEARCHED,
        max_parallel_jobs=_AT_ONCE,
        random_seed=0,
    )
    _fit(tuner)
    assert tuner.latest_tuning_job is not None
    rows = tuner.latest_tuning_job.trials()
    finals = {}
    for row in rows:
        values = {name: float(text) for name, text in row["values"].items()}
        for accuracy in tune_digits.accuracies(str(data), values["rate"], values["momentum"], int(values["units"])):
            finals[row["job"]] = accuracy
    found = finals[tuner.best_training_job()]
    place = 1 + sum(other > found for other in finals.values())
    share = sum(row["reports"] for row in rows) / (_SEARCHED * tune_digits.EPOCHS)
    return share, place, [{**row["values"], "reports": row["reports"], "full": finals[row["job"]]} for row in rows]


def _fit(tuner: Any) -> None:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        tuner.fit()


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    quiet = Quiet(options.patience)
    with harness.own_home(), tempfile.TemporaryDirectory() as folder:
        values = harness.alternate(
            options.alternations or 3, {"script": _bare, "tuner": lambda: _tuned(Path(folder))}, quiet
        )
        share, place, trials = _asha(Path(folder))
    bare, ours = ([numbers["trial"] for numbers in values[way]] for way in ("script", "tuner"))
    rows = [
        Row(
            what=f"a trial − the script alone, {_TRIALS} of each, {_AT_ONCE} at a time",
            estimate=median_with_interval([one - other for one, other in zip(ours, bare, strict=True)]),
            unit="s",
            bar=Bar(limit=_OVERHEAD_BAR),
        ),
        Row(
            what=f"epochs that ASHA trained ÷ all epochs of {_SEARCHED} trials on digits",
            estimate=median_with_interval([share]),
            unit="",
            bar=Bar(limit=_BUDGET_BAR),
        ),
        Row(
            what=f"the place of ASHA's best among the {_SEARCHED}, all trained to their end",
            estimate=median_with_interval([float(place)]),
            unit="",
        ),
    ]
    samples = {"trials": values, "ASHA on digits": json.loads(json.dumps(trials))}
    harness.record("tuning", rows, samples, quiet, dry=options.dry)
