"""Run, list, show and stop tuning jobs: ``fleetfit tune`` and ``fleetfit tuning``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from estimators.cli import Exit, console, jobargs, parsing
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.client.estimator import Estimator
    from estimators.tuning.record import TuningRecord
    from estimators.tuning.tuner import HyperparameterTuner

_EXAMPLES = """\
examples:
  fleetfit tune train.py --range learning-rate=log:1e-4:1e-1 --range units=16:256 --objective val_accuracy --max-jobs 20
  fleetfit tune train.py --range lr=log:1e-4:1 --range optimizer=sgd,adam --objective loss --minimize --search asha \\
      --max-jobs 64 --parallel 2 -m 'loss=loss: ([0-9.]+)' -- --epochs 27

A range is LOW:HIGH, log:LOW:HIGH (logarithmic), reverse:LOW:HIGH (logarithmic in 1 - x), or a list of choices such as
sgd,adam. If LOW and HIGH are whole numbers, the values are whole numbers. Ctrl-C ends only this command; the tuning job
continues. `fleetfit tuning NAME` shows the tuning job, and `fleetfit tuning NAME --stop` stops it.
"""
_SHOW_EXAMPLES = """\
examples:
  fleetfit tuning                          list the tuning jobs on record
  fleetfit tuning NAME                     show the trials, best first; if the tuning job was killed, restart it
  fleetfit tuning NAME --follow            show the trials until the tuning job ends
  fleetfit tuning NAME --report study.html
"""

#: Arguments of a tuner, as messages name them -> options of ``fleetfit tune``.
_WORDS = {
    "max_jobs": "--max-jobs", "max_parallel_jobs": "--parallel", "max_failures": "--max-failures",
    "max_runtime_in_seconds": "--max-time", "objective_metric_name": "--objective", "population_config": "--population",
    "repeats": "--repeats", "shared_fleet": "--fleet", "strategy_config": "--max-resource",
    "hyperparameter_ranges": "--range", "completion_criteria_config": "--target",
}  # fmt: skip
#: Names of search strategies on the command line -> names of SageMaker's API.
SEARCHES = {
    "bayesian": "Bayesian",
    "random": "Random",
    "grid": "Grid",
    "hyperband": "Hyperband",
    "asha": "ASHA",
    "pbt": "PBT",
}
#: Maximum time to wait for trackers after the tuning job's end, in seconds.
_TRACKERS_S = 30.0


def add(subparsers: Any) -> None:
    """Add the commands ``tune`` and ``tuning`` to the command line."""
    formatter = parsing.HelpFormatter
    tune = subparsers.add_parser(
        "tune", help="search for good hyperparameters with many jobs", epilog=_EXAMPLES, formatter_class=formatter,
        description="Runs a script with many combinations of hyperparameters, one job for each combination, and "
        "finds the best combination.",
    )  # fmt: skip
    search = tune.add_argument_group("the search")
    search.add_argument(
        "--range", metavar="NAME=RANGE", action="append", default=[], required=True,
        help="a hyperparameter and its range (see below); may be repeated",
    )  # fmt: skip
    search.add_argument("--objective", metavar="METRIC", required=True, help="the metric that ranks the trials")
    search.add_argument("--minimize", action="store_true", help="lower values are better (default: higher values)")
    search.add_argument(
        "--search", choices=tuple(SEARCHES), default="bayesian", help="how to search (default: bayesian)"
    )
    search.add_argument(
        "--max-jobs",
        type=parsing.count,
        metavar="N",
        help="maximum number of trials (default: 10; with --search grid: all points; with --fleet: as many as "
        "--max-time allows)",
    )
    search.add_argument(
        "--parallel", type=parsing.count, default=1, metavar="N", help="number of trials that run at once (default: 1)"
    )
    search.add_argument(
        "--seed", type=parsing.whole, metavar="N", help="seed of the random numbers, which makes the search repeatable"
    )
    ends = tune.add_argument_group("when trials and the search end")
    ends.add_argument(
        "--early-stopping", action="store_true", help="stop trials that are worse than the median of the other trials"
    )
    ends.add_argument(
        "--min-resource", type=parsing.count, metavar="N",
        help="hyperband, asha: number of objective values that a trial reports before the search can stop the trial",
    )  # fmt: skip
    ends.add_argument(
        "--max-resource", type=parsing.count, metavar="N",
        help="hyperband: number of objective values that a complete trial reports",
    )  # fmt: skip
    ends.add_argument("--population", type=parsing.count, metavar="N", help="pbt: size of the population (default: 4)")
    ends.add_argument(
        "--resource", metavar="NAME", help="pbt: the hyperparameter that sets a training's length (default: epochs)"
    )
    ends.add_argument(
        "--interval", type=parsing.count, metavar="N",
        help="pbt: length of a generation, in units of --resource (default: 1)",
    )  # fmt: skip
    ends.add_argument(
        "--target", type=float, metavar="VALUE", help="end the search when a trial's metric reaches this value"
    )
    ends.add_argument(
        "--patience", type=parsing.count, metavar="N", help="end the search after N trials without an improvement"
    )
    ends.add_argument("--max-time", type=parsing.duration, metavar="TIME", help="stop the search after this time")
    ends.add_argument(
        "--fleet", type=parsing.count, metavar="N",
        help="let elastic trials share N hosts; better trials get more hosts; needs --max-time",
    )  # fmt: skip
    ends.add_argument("--repeats", action="store_true", help="allow several trials with the same hyperparameters")
    ends.add_argument("--max-failures", type=parsing.count, metavar="N", help="end the search after N failed trials")
    shown = tune.add_argument_group("this command")
    shown.add_argument(
        "--no-wait", action="store_true", help="print the tuning job's name and return; the tuning job continues"
    )
    parsing.repeated(
        shown, "--track", "TRACKER", "send the trials to mlflow[=URI], wandb[=PROJECT] or tensorboard[=FOLDER]",
    )  # fmt: skip
    shown.add_argument("--report", metavar="FILE", help="at the end, write a report as an HTML file")
    shown.add_argument(
        "--json", action="store_true", help="print a description of the tuning job and of its best trial as JSON"
    )
    jobargs.add(tune)
    tune.set_defaults(run=run_tune, words=_WORDS)

    tuning = subparsers.add_parser(
        "tuning", help="list, show, follow or stop tuning jobs", epilog=_SHOW_EXAMPLES, formatter_class=formatter,
        description="Lists the tuning jobs on record, or shows one of them.",
    )  # fmt: skip
    tuning.add_argument("name", nargs="?", metavar="NAME", help="a tuning job's name, or the beginning of its name")
    tuning.add_argument("--follow", action="store_true", help="show the tuning job until it ends")
    tuning.add_argument("--stop", action="store_true", help="stop the tuning job and its trials")
    tuning.add_argument("--report", metavar="FILE", help="write a report as an HTML file with plots")
    tuning.add_argument("--json", action="store_true", help="print as JSON")
    tuning.set_defaults(run=run_tuning)


def run_tune(args: argparse.Namespace) -> int:
    """Start a tuning job. Unless ``--no-wait`` is given, show the trials until the tuning job ends."""
    from estimators.client import trackers

    parsing.check_file("--report", args.report)
    if args.track and args.no_wait:
        raise ConfigurationError(
            "--track works only while this command waits; with --no-wait, run `fleetfit track TRACKER NAME` later."
        )
    chosen = [trackers.parse(text) for text in args.track]
    described = jobargs.job_of(args)
    tuner = _tuner(args, described.estimator)
    with described.located():
        tuner.fit(described.inputs, job_name=args.name, wait=False)
    record = tuner._record()
    if args.no_wait:
        console.out(record.name)
        return Exit.OK
    console.say(
        f"tuning job {record.name} continues without this command; `fleetfit tuning {record.name} --stop` stops it."
    )
    if not chosen:
        return _follow(record, report=args.report, as_json=args.json)
    from estimators.tuning import tracking

    following = tracking.Following(record, chosen)
    try:
        return _follow(record, report=args.report, as_json=args.json)
    finally:
        following.finish(_TRACKERS_S)


def run_tuning(args: argparse.Namespace) -> int:
    """List the tuning jobs, or show or stop a single tuning job.

    A single tuning job that has not ended, and whose process was killed, is restarted unless ``--stop`` is given.
    """
    from estimators.results import tables
    from estimators.tuning import running
    from estimators.tuning.analytics import describe
    from estimators.tuning.display import cells, held_up_by, report, sorted_rows, summary

    if args.name is None:
        if args.follow or args.stop or args.report:
            raise ConfigurationError("--follow, --stop and --report need the name of a tuning job.")
        return _list(as_json=args.json)
    record = _find(args.name)
    parsing.check_file("--report", args.report)
    if args.stop:
        running.stop(record)
    else:
        running.ensure(record)
    if args.follow:
        return _follow(record, report=args.report, as_json=args.json)
    if args.report:
        console.say(f"report: {report(record, args.report)}")
    if args.json:
        console.out_json(describe(record))
        return Exit.OK
    title = f"{record.name}  {record.status()['HyperParameterTuningJobStatus']}"
    console.out(console.with_states_coloured(f"{title}\n{summary(record)}"))
    if (held_up := held_up_by(record)) is not None:
        console.say(held_up)
    head, rows = cells(record, sorted_rows(record))
    width = tables.terminal_width()
    if width is not None:  # leave out the jobs' names; the trials' numbers identify the trials
        head, rows = head[:-1], [row[:-1] for row in rows]
    console.out(console.with_states_coloured(tables.numbers(head, rows, width)))
    return Exit.OK


def _follow(record: TuningRecord, *, report: str | None, as_json: bool) -> int:
    from estimators.tuning import running
    from estimators.tuning.analytics import describe
    from estimators.tuning.display import LiveTable, failure
    from estimators.tuning.display import report as write_report

    with LiveTable(record, quiet=as_json) as live:
        for _ in running.follow(record):
            live.changed()
    status = record.status()
    if report is not None:
        console.say(f"report: {write_report(record, report)}")
    described = describe(record)
    if as_json:
        console.out_json(described)
    best = described.get("BestTrainingJob")
    if best is not None and not as_json:
        values = " ".join(f"--{name} {text}" for name, text in best["TunedHyperParameters"].items())
        console.out(f"best: {best['TrainingJobName']}  {values}")
    state = status["HyperParameterTuningJobStatus"]
    if state == "Failed":
        raise failure(record, status)
    return Exit.STOPPED if state == "Stopped" else Exit.OK


def _tuner(args: argparse.Namespace, estimator: Estimator) -> HyperparameterTuner:
    from estimators.tuning import ranges
    from estimators.tuning.config import (
        HyperbandStrategyConfig,
        PopulationConfig,
        StrategyConfig,
        TuningJobCompletionCriteriaConfig,
    )
    from estimators.tuning.fleet import SharedFleetConfig
    from estimators.tuning.tuner import HyperparameterTuner

    search = SEARCHES[args.search]
    given = {}
    for name, text in parsing.pairs("--range", args.range, "NAME=RANGE").items():
        try:
            given[name] = ranges.parse(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"--range {name}: {error}") from None
    typed = parsing.hyperparameters(args.hyperparameters, args.script_arguments)
    if both := sorted(given.keys() & typed.keys()):
        raise ConfigurationError(f"{both[0]} has a --range and a value. Leave one of them out.")
    resources = None
    if args.max_resource is not None or args.min_resource is not None:
        least = args.min_resource or 1
        resources = StrategyConfig(HyperbandStrategyConfig(args.max_resource, least))
    asked = {"size": args.population, "resource": args.resource, "interval": args.interval}
    members = {name: value for name, value in asked.items() if value is not None}
    completion = None
    if args.target is not None or args.patience is not None:
        completion = TuningJobCompletionCriteriaConfig(args.patience, None, args.target)
    return HyperparameterTuner(
        estimator,
        args.objective,
        given,
        strategy=search,
        objective_type="Minimize" if args.minimize else "Maximize",
        max_jobs=args.max_jobs if args.max_jobs is not None or search == "Grid" or args.fleet else 10,
        max_parallel_jobs=args.parallel,
        max_runtime_in_seconds=args.max_time,
        strategy_config=resources,
        completion_criteria_config=completion,
        early_stopping_type="Auto" if args.early_stopping else "Off",
        random_seed=args.seed,
        population_config=PopulationConfig(**members) if members else None,
        max_failures=args.max_failures,
        repeats=args.repeats,
        shared_fleet=SharedFleetConfig(hosts=args.fleet) if args.fleet is not None else None,
    )


def _find(text: str) -> TuningRecord:
    from estimators.tuning.record import TuningRecord, tuning_names

    names = tuning_names()
    begun = [name for name in names if name.startswith(text)]
    if text not in names and len(begun) > 1:
        raise ConfigurationError(f"{len(begun)} tuning jobs begin with {text!r}: {', '.join(begun[:8])}.")
    return TuningRecord.open(begun[0] if text not in names and begun else text)


def _list(*, as_json: bool) -> int:
    from estimators.tuning.display import summary
    from estimators.tuning.record import TuningRecord, tuning_names

    records = [TuningRecord.open(name) for name in tuning_names()]
    records = sorted((one for one in records if one.status()), key=lambda one: -one.status()["CreationTime"])
    if as_json:
        console.out_json([{"name": one.name, **one.status()} for one in records])
        return Exit.OK
    rows = [[one.name, one.status()["HyperParameterTuningJobStatus"], summary(one)] for one in records]
    console.out(console.table(["NAME", "STATUS", "TRIALS"], rows, status_column=1, paragraphs=True))
    return Exit.OK
