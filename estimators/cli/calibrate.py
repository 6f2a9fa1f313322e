"""Measure the costs of exchanging gradients on this machine: ``fleetfit calibrate``.

``recommend()`` uses these costs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from estimators.cli import Exit, console, parsing
from estimators.job import fleets
from estimators.job.errors import ConfigurationError, PreflightWarning

if TYPE_CHECKING:
    from estimators.results.advice.calibration import Check

#: Numbers of processes to fit to.
_COUNTS = (2, 4)


def add(subparsers: Any) -> None:
    """Add the command ``calibrate`` to the command line."""
    parser = subparsers.add_parser(
        "calibrate", help="measure the cost of each strategy, for recommend()",
        description="Measures the costs that recommend() uses. Runs short trainings of a small and a large network: "
        "with one process, then with two and with four processes under each strategy. Fits the costs to these runs, "
        "and saves the costs. To measure the error of the fit, also runs trainings of a network of medium size, and "
        "trainings with three processes. While this command runs, run nothing else on the machine.",
    )  # fmt: skip
    parser.add_argument(
        "-t", "--instance-type", default=fleets.DEFAULT, metavar="TYPE",
        help=f"where the hosts come from (default: {fleets.DEFAULT})",
    )  # fmt: skip
    parser.add_argument(
        "-s", "--strategy", action="append", default=[], metavar="NAME",
        help="strategy to measure: mpi, collective_all_reduce or parameter_server; may be repeated (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S",
        help="measure the steps of each network for S seconds (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--processes", type=parsing.count, action="append", default=[], metavar="N",
        help="measure each strategy with N processes; may be repeated (default: 2 and 4)",
    )  # fmt: skip
    parser.add_argument("--no-check", action="store_true", help="skip the trainings that check the calibration")
    parser.add_argument("--json", action="store_true", help="print the calibration as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure the strategies, fit and save the calibration, and print the calibration's error."""
    from container.contract.names import unknown
    from estimators.client import calibrate
    from estimators.client.compare import ComparisonWarning
    from estimators.results.advice import calibration

    strategies = [name.replace("-", "_") for name in args.strategy] or list(calibration.STRATEGIES)
    for name in strategies:
        if name not in calibration.STRATEGIES:
            raise ConfigurationError(unknown("strategy", name, calibration.STRATEGIES))
    if not args.seconds > 0:
        raise ConfigurationError(f"--seconds must be over 0, got {args.seconds:g}.")
    counts = sorted(set(args.processes or _COUNTS))
    if counts[0] < 2:
        raise ConfigurationError("--processes must be at least 2: a single process is always measured.")
    shared = fleets.capabilities(args.instance_type).shared_machine
    runs = 1 + len(counts) * len(strategies) + (0 if args.no_check else len(strategies))
    console.say(f"{runs} short runs, one after another. The calibration is saved before the check.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComparisonWarning)  # the runs have different batches on purpose
        warnings.simplefilter("ignore", PreflightWarning)  # processes share the cores on purpose, too
        settings = {"instance_type": args.instance_type, "seconds": args.seconds}
        console.say(f"measuring {', '.join(strategies)} with {' and '.join(map(str, counts))} processes …")
        sizes = (
            (calibrate.SMALL, calibrate.LARGE)
            if args.no_check
            else (calibrate.SMALL, calibrate.BETWEEN, calibrate.LARGE)
        )
        measured = calibrate.measure(strategies, counts, sizes, alone=True, **settings)
        _say_failures(measured)
        steps = calibrate.observations(measured)
        others = sorted({one.gradient_bytes for one in steps})[1:-1]
        known = [one for one in steps if one.gradient_bytes not in others]
        found = calibration.fit(
            known, instance_type=args.instance_type, cores=len(os.sched_getaffinity(0)) if shared else None
        )
        file = found.save()
        fitted = calibration.check(found, known)
        if not args.json:
            for point in found.points:
                for strategy, line in point.lines.items():
                    alone = f"; computing takes {line.contention:.2f} times as long as in one process alone"
                    slower = alone if shared else ""
                    console.out(
                        f"{strategy}, {point.processes} processes: {line.fixed_s * 1e3:.2f} ms per step and "
                        f"{line.bandwidth / 1e6:,.0f} MB/s{slower}"
                    )
            _out_checks("the fitted steps", fitted)
            console.say(f"saved in {file}; recommend(…, instance_type={args.instance_type!r}) uses this calibration.")
        unseen: list[Check] = []
        if not args.no_check:
            other = next((count + 1 for count in counts[:-1] if count + 1 not in counts), counts[-1] + 1)
            console.say(f"checking with {other} processes …")
            checked = calibrate.measure(strategies, (other,), sizes, **settings)
            _say_failures(checked)
            unseen = [
                one for one in calibration.check(found, [*steps, *calibrate.observations(checked)]) if one not in fitted
            ]
            found = dataclasses.replace(found, error=calibration.mean_error(unseen))
            found.save()
    if args.json:
        console.out_json(
            {**found.to_dict(), "fitted": [vars(one) for one in fitted], "unseen": [vars(one) for one in unseen]}
        )
    else:
        _out_checks("the other steps", unseen)
    return Exit.OK


def _out_checks(title: str, checks: Sequence[Check]) -> None:
    """Print the relative error of the calibration for each run, and the mean error of all runs."""
    from estimators.results.advice.calibration import mean_error

    for one in checks:
        console.out(str(one))
    error = mean_error(checks)
    if error is not None:
        console.out(f"mean error of {title}: {error:.0%}")


def _say_failures(comparison: Any) -> None:
    for note in comparison.notes():
        if "failed" in note:
            console.say(note)
