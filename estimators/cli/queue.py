"""Show the jobs that run or wait in the queues of this machine: ``fleetfit queue``."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from estimators.cli import Exit, console, parsing
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.job.queueing import QueuedJob

_EXAMPLES = """\
examples:
  fleetfit train train.py --queue default --needs cores=4 --needs memory_gb=8
  fleetfit train train.py --queue default --priority 10
  fleetfit queue                      show the running jobs, and the waiting jobs in their order
  fleetfit stop JOB                   remove a waiting job from the queue, or end a running job
"""


def add(subparsers: Any) -> None:
    """Add the command ``queue`` to the command line."""
    command = subparsers.add_parser(
        "queue", help="show the queues of this machine", epilog=_EXAMPLES,
        formatter_class=parsing.HelpFormatter,
        description="Shows the queues of this machine: the running jobs, the waiting jobs in their order, and the "
        "resources that each job needs. `fleetfit train --queue NAME` or RunOptions(queue=…) puts a job into a queue.",
    )  # fmt: skip
    command.add_argument("name", nargs="?", metavar="NAME", help="show only this queue")
    command.add_argument("--json", action="store_true", help="print the queues as JSON")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the jobs that run or wait in the queues."""
    from estimators.job.queueing import placed
    from estimators.records.queues import JobQueue, machine, queue_names

    names = queue_names()
    if args.name is not None:
        if args.name not in names:
            raise ConfigurationError(
                f"there is no queue {args.name!r}; queues: "
                f"{', '.join(names) or 'none, because no job has been queued yet'}."
            )
        names = [args.name]
    found = {name: JobQueue(name).entries() for name in names}
    if args.json:
        console.out_json(
            {
                name: [{**dataclasses.asdict(one), "position": place} for place, one in placed(entries)]
                for name, entries in found.items()
            }
        )
        return Exit.OK
    rows = [
        [name, "running" if place is None else str(place), one.job, str(one.priority), str(one.needs), _since(one)]
        for name, entries in found.items()
        for place, one in placed(entries)
    ]
    if not rows:
        console.say("no job runs or waits in a queue.")
        return Exit.OK
    console.out(
        console.table(("QUEUE", "PLACE", "JOB", "PRIORITY", "NEEDS", "SINCE"), rows, names=2, optional=(5, 3, 4))
    )
    console.say(f"this machine has {machine()}.")
    return Exit.OK


def _since(entry: QueuedJob) -> str:
    from estimators.results.summary import seconds_text

    return seconds_text(max(0.0, time.time() - entry.since))
