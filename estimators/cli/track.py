"""Send jobs, or the missing part of their data, to an experiment tracker such as MLflow: ``fleetfit track``."""

from __future__ import annotations

import argparse
import os
from typing import Any

from estimators.cli import Exit, console, jobnames, parsing

_EXAMPLES = """\
examples:
  fleetfit track mlflow JOB
  fleetfit track mlflow=http://tracking:5000 JOB OTHER-JOB
  fleetfit track tensorboard=runs $(fleetfit list --quiet)
"""
#: Shorter timeouts than those in a job's own thread, because a person is waiting for the command.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


def add(subparsers: Any) -> None:
    """Add the command ``track`` to the command line."""
    track = subparsers.add_parser(
        "track", help="send jobs to MLflow, Weights & Biases or TensorBoard", epilog=_EXAMPLES,
        formatter_class=parsing.HelpFormatter,
        description="Sends jobs to a tracker. Use this command for jobs that ran without the tracker, and for jobs "
        "that ended while the tracker was down: only the missing data is sent.",
    )  # fmt: skip
    track.add_argument("tracker", metavar="TRACKER", help="mlflow[=URI], wandb[=PROJECT] or tensorboard[=FOLDER]")
    track.add_argument("jobs", nargs="+", metavar="JOB", help=f"{jobnames.HELP}; or a tuning job's name")
    track.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Send the named jobs and tuning jobs to a tracker."""
    from estimators.client.attaching import find_job
    from estimators.client.trackers import parse
    from estimators.tuning import tracking
    from estimators.tuning.record import TuningRecord, tuning_names

    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    tracker = parse(args.tracker)
    for name in args.jobs:
        if name in tuning_names():
            tracking.sync(TuningRecord.open(name), tracker)
            console.say(f"tuning job {name}: sent to {tracker.title}.")
            continue
        job = find_job(jobnames.resolve(name))
        sent = tracker.sync(job)
        console.say(
            f"{job.name}: sent to {tracker.title}." if sent else f"{job.name}: another process is sending this job."
        )
    return Exit.OK
