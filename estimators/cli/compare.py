"""Compare jobs side by side, or run a script under several strategies and compare the runs: ``fleetfit compare``."""

from __future__ import annotations

import argparse
import itertools
import warnings
from typing import Any

from estimators.cli import Exit, console, jobargs, jobnames, parsing
from estimators.job import fleets
from estimators.job.errors import ConfigurationError

_EXAMPLES = """\
examples:
  fleetfit compare JOB JOB JOB                      compare jobs that have ended
  fleetfit compare JOB JOB --report compared.html   also write one HTML file with plots
  fleetfit compare --script entrypoints/train.py -s mpi -s parameter_server -n 1,2 --repeat 3 \\
      -i train=data/digits/train -i validation=data/digits/validation -H epochs=5
"""


def add(subparsers: Any) -> None:
    """Add the command ``compare`` to the command line."""
    parser = subparsers.add_parser(
        "compare", help="compare jobs or strategies", epilog=_EXAMPLES,
        formatter_class=parsing.HelpFormatter,
        description="Shows jobs side by side in a table. With --script, first runs a script under each strategy and "
        "with each number of hosts, one run after another. With --repeat N, runs each combination N times, in N "
        "rounds; every second round is in reverse order.",
    )  # fmt: skip
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"{jobnames.HELP}; or the path of a result.json")
    running = parser.add_argument_group("running a script")
    running.add_argument("--script", metavar="SCRIPT", help="entry point to run under each strategy")
    running.add_argument("--source-dir", metavar="DIR", help="folder with the script and its modules")
    parsing.repeated(
        running, "-s", "--strategy", "NAME", f"distribution strategy: one of {', '.join(jobargs.STRATEGIES)}",
    )  # fmt: skip
    jobargs.add_framework(running)
    running.add_argument("-n", "--hosts", metavar="N[,N…]", help="run with each of these numbers of hosts (default: 2)")
    running.add_argument("-p", "--processes", type=parsing.count, metavar="N", help="processes per host (default: 1)")
    running.add_argument(
        "-t", "--instance-type", metavar="TYPE",
        help=f"where the hosts come from (default: {fleets.DEFAULT})",
    )  # fmt: skip
    parsing.repeated(
        running, "-H", "--hyperparameters", "NAME=VALUE", "one hyperparameter as NAME=VALUE, several as a JSON "
        "object, or @FILE to read a JSON object from a file",
    )  # fmt: skip
    parsing.repeated(
        running, "-i", "--input", "[CHANNEL=]PATH", "input channel: its name (default: training) and the path or URI "
        "of its data",
    )  # fmt: skip
    running.add_argument(
        "--repeat", type=parsing.count, metavar="N", help="number of runs of each combination (default: 1)"
    )
    running.add_argument("--logs", action="store_true", help="show the logs of the jobs")
    shown = parser.add_argument_group("output")
    shown.add_argument("--report", metavar="FILE", help="write a single HTML file with the table and plots")
    parsing.repeated(shown, "--price", "TYPE=DOLLARS", "price of an instance type, in dollars per host and hour")
    shown.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run, words={"entry_point": "--script", "prices": "--price", "repeat": "--repeat"})


#: Options that only affect runs of a script.
_ONLY_RUNS = (
    "strategy", "framework", "source-dir", "hosts", "processes", "instance-type", "hyperparameters", "input", "repeat",
    "logs",
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Compare jobs, or run a script under several strategies and compare the runs."""
    from estimators.client.compare import ComparisonWarning, compare

    if bool(args.jobs) == bool(args.script):
        raise ConfigurationError("compare: give the names of jobs, or --script and at least one --strategy.")
    if args.jobs and (given := [f"--{name}" for name in _ONLY_RUNS if getattr(args, name.replace("-", "_"))]):
        raise ConfigurationError(f"{given[0]} is only for --script: the jobs have already run.")
    prices = _prices(args.price)
    parsing.check_file("--report", args.report)
    with warnings.catch_warnings():
        if not args.json:  # the notes below the table contain these warnings
            warnings.simplefilter("ignore", ComparisonWarning)
        if args.jobs:
            comparison = compare(*map(jobnames.resolve_unless_path, args.jobs), prices=prices)
        else:
            inputs = parsing.inputs(args.input)
            comparison = compare(
                *_estimators(args), inputs=inputs, repeat=args.repeat or 1, prices=prices, logs=args.logs
            )  # fmt: skip
    if args.json:
        console.out_json(comparison.to_dict())
    else:
        console.out(str(comparison))
    if args.report is not None:  # at the end, because this may fail
        console.say(f"report: {comparison.report(args.report)}")
    return Exit.OK if all(group.completed for group in comparison.groups) or args.jobs else Exit.FAILED


def _estimators(args: argparse.Namespace) -> list[Any]:
    if not args.strategy:
        raise ConfigurationError(f"--strategy is missing: give one or more of {', '.join(jobargs.STRATEGIES)}.")
    from estimators.client.jobfiles import building

    found = []
    for strategy, hosts in itertools.product(args.strategy, _numbers(args.hosts or "2")):
        processes = None if strategy.lower().startswith(("parameter", "ps", "none", "mirrored")) else args.processes
        values: dict[str, Any] = {
            "entry_point": args.script,
            "source_dir": args.source_dir,
            "hyperparameters": parsing.hyperparameters(args.hyperparameters, []),
            "distribution": jobargs.distribution(strategy, processes, []),
            "instance_count": hosts,
            "instance_type": args.instance_type,
        }
        found.append(
            building.estimator_for(
                args.framework, {name: value for name, value in values.items() if value is not None}, model_dir=False
            )
        )
    return found


def _numbers(text: str) -> list[int]:
    try:
        return [parsing.count(word) for word in text.split(",")]
    except (argparse.ArgumentTypeError, ValueError):
        raise ConfigurationError(
            f"--hosts {text}: write whole numbers from 1, separated by commas, such as 1,2,4."
        ) from None


def _prices(items: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, text in parsing.pairs("--price", items, "TYPE=DOLLARS").items():
        try:
            found[name] = float(text)
        except ValueError:
            raise ConfigurationError(f"--price {name}={text}: {text!r} is not a number of dollars per hour.") from None
    return found
