"""Fingerprints of what fleetfit shows in notebooks.

Each function of ``SAMPLES`` shows one fixed value: a result, a comparison, a tuning job, and so on. If a template, a
format of numbers, a title or a colour changes, the digest of the sample changes too. ``execute.py`` stores the digests
of the displays that a notebook contains, so that a test can tell which notebooks show displays of an older version.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from container.contract.durations import Durations
from estimators.client.simulation.forecast import simulate
from estimators.faults import SpotMarket
from estimators.results.advice.model import Prediction
from estimators.results.advice.published import MODELS
from estimators.results.advice.recommending import Candidate, Recommendation
from estimators.results.comparison.comparison import Comparison, Group
from estimators.results.html import render
from estimators.results.plots import Plot
from estimators.results.result import Checkpoints, ModelFacts, Moment, Point, RankResult, Result
from estimators.tuning import plots as study_plots
from estimators.tuning.config import TuningSpec
from estimators.tuning.display import study_html
from estimators.tuning.record import TuningRecord

PHASES = ("launch", "import", "rendezvous", "first_step", "training", "teardown")


def today() -> dict[str, str]:
    """Return the digest of each display, by its name: the end of its HTML class, or the title of its plot."""
    return {name: _digest(name) for name in SAMPLES}


@functools.cache
def _digest(name: str) -> str:
    shown = SAMPLES[name]()
    text = json.dumps(_parts(shown)) if isinstance(shown, Plot) else shown
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _parts(plot: Plot) -> list[Any]:
    """Return the texts, colours, dashes and markers of a plot. The pixels depend on matplotlib's version and fonts."""
    from matplotlib.colors import to_hex

    found: list[Any] = [plot.title, [round(float(size), 2) for size in plot.figure.get_size_inches()]]
    for axes in plot.figure.axes:
        found.append([axes.get_title(), axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()])
        found.append([text.get_text() for text in (*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels())])
        found += [
            [to_hex(line.get_color()), line.get_linestyle(), str(line.get_marker()), line.get_label()]
            for line in axes.lines
        ]
        found += [[to_hex(patch.get_facecolor()), patch.get_hatch()] for patch in axes.patches]
    legends = [*plot.figure.legends, *(legend for axes in plot.figure.axes if (legend := axes.get_legend()))]
    return [*found, [[text.get_text() for text in legend.get_texts()] for legend in legends]]


# --- samples ---


def result(strategy: str = "mpi", hosts: int = 2, run: int = 1) -> Result:
    """Return the result of a job that never ran."""
    steps = Durations()
    steps.add(0.010 + 0.001 * run, 90)
    steps.add(0.030, 10)
    name = f"sample-{strategy.replace('_', '-')}-{hosts}-{run}"
    return Result(
        job_name=name,
        status="Completed",
        secondary_status="Completed",
        seconds=12.5 + run,
        phases=dict(zip(PHASES, (0.5, 5.25, 0.125, 1.5, 4.0 + run, 1.125), strict=True)),
        final_metrics={"loss": 0.0123456, "val_accuracy": 0.98},
        model_data=f"/jobs/{name}/model.tar.gz",
        checkpoints=f"/jobs/{name}/checkpoints",
        logs=f"/jobs/{name}/hosts",
        strategy=strategy,
        instance_type="local_process",
        hosts=hosts,
        processes=hosts,
        hyperparameters={"epochs": 2},
        global_batch_size=64,
        steps=100,
        steps_per_second=80.0 + run,
        samples_per_second=5120.0 * hosts + run,
        model=ModelFacts(parameters=1_100_000, trainable=1_000_000, gradient_bytes=4_000_000, tensors=8),
        ranks=tuple(
            RankResult(
                rank=rank,
                host=f"algo-{rank + 1}",
                steps=steps,
                exchange_s=0.004 + 0.001 * rank,
                epochs_own_s=(0.007, 0.006),
                peak_memory_bytes=700_000_000,
                exit_code=0,
            )
            for rank in range(hosts)
        ),
        series=tuple(
            Point(
                name=metric,
                value=value / epoch,
                rank=0,
                host="algo-1",
                attempt=0,
                elapsed_s=7.0 + epoch,
                samples=64 * epoch,
            )
            for epoch in (1, 2, 3)
            for metric, value in (("loss", 1.0), ("val_accuracy", 0.9))
        ),
        moments=(Moment(kind="joined", elapsed_s=8.0, text="algo-3 joined"),),
        checkpointing=Checkpoints(count=2, last_bytes=4_000_000, blocked_s=0.05, write_s=0.1),
        provenance={"software": {"fleetfit": "1"}},
    )  # fmt: skip


def comparison() -> Comparison:
    """Return a comparison of three strategies, one of them also on one host, with two runs each."""
    shapes = (("mpi", 1), ("mpi", 2), ("collective_all_reduce", 2), ("parameter_server", 2))
    return Comparison(
        [Group(f"{name} on {hosts}", tuple(result(name, hosts, run) for run in (1, 2))) for name, hosts in shapes]
    )


def recommendation() -> Recommendation:
    """Return a recommendation with two options."""
    options = [
        Candidate(
            strategy=strategy,
            hosts=2,
            processes_per_host=1,
            instance_type="ml.p3.2xlarge",
            prediction=Prediction(
                strategy=strategy,
                step_s=0.2,
                compute_s=0.17,
                waiting_s=0.01,
                exchange_s=0.02,
                limit="links",
                samples_per_second=640.0,
                efficiency=0.85,
            ),
            dollars_per_million=3.2,
        )
        for strategy in ("mpi", "collective_all_reduce")
    ]
    return Recommendation(tuple(options), ("One reason.", "Another reason."))


def forecast() -> str:
    """Return the HTML of a forecast. Its numbers are left out: they belong to the simulation."""
    job = simulate(
        MODELS["resnet50"].workload(compute_s=0.3, batch_size=64), hosts=2, market=SpotMarket(rate=0.0, notice_s=120),
        records=100_000, prices=(1.0, 2.0), runs=1,
    )  # fmt: skip
    return render("client/templates/forecast", rows=[(name, "…") for name, _ in job.rows()])


class _Study(TuningRecord):
    """The record of a tuning job that never ran."""

    spec = TuningSpec(
        name="sample",
        objective="val_accuracy",
        strategy="ASHA",
        max_jobs=3,
        parameter_ranges={
            "ContinuousParameterRanges": [
                {"Name": "learning-rate", "MinValue": "0.001", "MaxValue": "10", "ScalingType": "Logarithmic"}
            ]
        },
    )

    def status(self) -> dict[str, Any]:
        return {
            "HyperParameterTuningJobStatus": "Completed", "CreationTime": 0.0, "HyperParameterTuningEndTime": 60.0,
            "TrainingJobStatusCounters": {"InProgress": 0, "Completed": 1, "Stopped": 1, "NonRetryableError": 1},
            "ObjectiveStatusCounters": {"Succeeded": 2, "Failed": 1},
        }  # fmt: skip

    def trials(self) -> list[dict[str, Any]]:
        ends = (("Completed", 0.98, None), ("Pruned", 0.5, "pruned after 1 value"), ("Failed", None, "a reason"))
        return [
            {
                "number": number, "job": f"sample-{number}", "state": state, "value": value, "last": value,
                "values": {"learning-rate": "0.0123456"}, "reason": reason, "reports": 3, "created": 0.0, "ended": 30.0,
            }
            for number, (state, value, reason) in enumerate(ends)
        ]  # fmt: skip


def study() -> TuningRecord:
    """Return the record of a tuning job with a trial of each kind."""
    return _Study(Path("sample"))


def study_with_plots() -> str:
    """Return the HTML of a tuning job, with the parts of its plots in place of pixels."""
    record = study()
    plots = [study_plots.history(record), study_plots.parallel(record)]
    return study_html(record, plots=False) + json.dumps([_parts(plot) for plot in plots])


def pane() -> str:
    """Return the HTML of a pane whose job has ended."""
    return render(
        "client/templates/pane", job="sample", table="<table></table>", kept="TensorFlow stays loaded for 10 minutes",
        title="logs (1 line)", text="a line", done=None, total=None, parts=[], curve="", size=(1, 1), kernel=None,
        stopping=False,
    )  # fmt: skip


SAMPLES: dict[str, Callable[[], str | Plot]] = {
    "job": lambda: result()._repr_html_(),
    "pane": pane,
    "comparison": lambda: comparison()._repr_html_(),
    "recommendation": lambda: recommendation()._repr_html_(),
    "forecast": forecast,
    "study": study_with_plots,
    "Curves": lambda: comparison().plot("curves"),
    "Throughput": lambda: comparison().plot("throughput"),
    "Phases": lambda: comparison().plot("phases"),
    "Scaling": lambda: comparison().plot("scaling"),
    "Step times": lambda: comparison().plot("steps"),
    "Predicted steps": lambda: recommendation().plot(),
    "Trials": lambda: study_plots.history(study()),
    "Parallel coordinates": lambda: study_plots.parallel(study()),
}
