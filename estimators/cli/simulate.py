"""Predict a job's duration and cost on hosts that can be interrupted: ``fleetfit simulate JOB``."""

from __future__ import annotations

import argparse
from typing import Any

from estimators.cli import Exit, console, jobnames, parsing
from estimators.job.errors import ConfigurationError

_EXAMPLES = """\
examples:
  fleetfit simulate JOB --hosts 4:32 --rate 0.05                   an elastic job with 4 to 32 hosts
  fleetfit simulate JOB --hosts 8 --rate 0.05 --notice 120         a job that restarts from its checkpoints
  fleetfit simulate JOB --hosts 4:32 --rate 0.05 --epochs 90 --prices 0.92,3.06 --on-demand-base 2
"""


def add(subparsers: Any) -> None:
    """Add the command ``simulate`` to the command line."""
    parser = subparsers.add_parser(
        "simulate", help="predict a job's time and cost on other hosts and on a spot market", epilog=_EXAMPLES,
        formatter_class=parsing.HelpFormatter,
        description="Predicts how long an earlier job would take, and how much it would cost, on other hosts and on a "
        "spot market. Starts nothing.",
    )  # fmt: skip
    parser.add_argument("job", metavar="JOB", help=f"{jobnames.HELP}; or the path of a result.json")
    parser.add_argument(
        "-n", "--hosts", required=True, metavar="N|LEAST:MOST", help="number of hosts; a range means an elastic job"
    )
    parser.add_argument(
        "-p", "--processes", type=parsing.count, help="processes on each host (default: as many as in the job)"
    )
    parser.add_argument(
        "--epochs", type=float, help="number of epochs to train; the job must have a hyperparameter `epochs`"
    )
    parser.add_argument(
        "--records", type=float, help="total number of records to train on, over all epochs (instead of --epochs)"
    )
    parser.add_argument("--rate", type=parsing.amount, default=0.0, help="interruptions per host and hour (default: 0)")
    parser.add_argument(
        "--notice", type=parsing.amount, default=120.0, metavar="S",
        help="seconds from the notice to the interruption (default: 120)",
    )  # fmt: skip
    parser.add_argument(
        "--return-after", type=parsing.amount, default=60.0, metavar="S",
        help="seconds until an interrupted host is replaced (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--on-demand-base", type=parsing.whole, default=0, metavar="N",
        help="number of on-demand hosts, which are never interrupted (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--prices", metavar="SPOT,ON_DEMAND", help="spot price and on-demand price of a host, in dollars per hour"
    )
    parser.add_argument(
        "--commit-every", default="auto", metavar="S", help="seconds between commits or checkpoints (default: auto)"
    )
    parser.add_argument(
        "--start",
        type=parsing.amount,
        default=1.0,
        metavar="S",
        help="seconds that a new host takes to start (default: 1)",
    )
    parser.add_argument("--runs", type=parsing.count, default=1000, help="number of simulated runs (default: 1000)")
    parser.add_argument("--seed", type=parsing.whole, default=0, help="seed of the first run (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the prediction as JSON")
    words = {
        "records": "--records",
        "epochs": "--epochs",
        "on_demand_base": "--on-demand-base",
        "runs": "--runs",
        "prices": "--prices",
    }
    parser.set_defaults(run=run, words=words)


def run(args: argparse.Namespace) -> int:
    """Simulate the job, and print the prediction."""
    from estimators.client.compare import compare
    from estimators.client.simulation.forecast import simulate
    from estimators.client.simulation.model import Timings
    from estimators.job.spot_market import SpotMarket

    market = SpotMarket(rate=args.rate, notice_s=args.notice, return_after_s=args.return_after, seed=args.seed)
    commit = args.commit_every
    forecast = simulate(
        compare(jobnames.resolve_unless_path(args.job)).results[0],
        hosts=_hosts(args.hosts),
        market=market,
        records=args.records,
        epochs=args.epochs,
        processes_per_host=args.processes,
        prices=None if args.prices is None else _numbers("--prices", args.prices, ",", float),
        on_demand_base=args.on_demand_base,
        commit_every=commit if commit == "auto" else _numbers("--commit-every", commit, None, float)[0],
        timings=Timings(start_s=args.start),
        runs=args.runs,
    )
    if args.json:
        console.out_json(forecast.to_dict())
    else:
        console.out(str(forecast))
    return Exit.OK


def _hosts(text: str) -> Any:
    numbers = _numbers("--hosts", text, ":", int)
    return numbers[0] if len(numbers) == 1 else numbers


def _numbers(option: str, text: str, separator: str | None, kind: type[int] | type[float]) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in (text.split(separator) if separator else [text]))
    except ValueError:
        example = {":": "4:32", ",": "0.92,3.06", None: "30"}[separator]
        raise ConfigurationError(f"{option} {text!r}: expected numbers such as {example}.") from None
