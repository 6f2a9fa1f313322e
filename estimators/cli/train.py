"""``fleetfit train`` and ``fleetfit plan``."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from estimators.cli import Exit, console, jobargs, parsing
from estimators.client.interrupts import ask_to_end

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob

_EXAMPLES = """\
examples:
  fleetfit train train.py
  fleetfit train train.py --source-dir code --strategy mpi --hosts 2 --input train=data/digits -- --epochs 4 --lr 0.1
  fleetfit train train.py -s mpi -n 2 -p 2 --metric 'loss=loss: ([0-9.]+)' --max-run 1h
  job=$(fleetfit train train.py --no-wait) && fleetfit logs -f "$job"

Ctrl-C stops the job: the script has 5 seconds to save; a second Ctrl-C ends it at once. A job on SageMaker (ml.*)
or with a --dispatcher goes on: `fleetfit stop` ends it.
"""

_PLAN_EXAMPLES = """\
examples:
  fleetfit plan train.py --strategy mpi --hosts 2 --processes 2
  fleetfit plan train.py --strategy parameter_server --hosts 2 --json
"""


def add(subparsers: Any) -> None:
    """Add both commands."""
    formatter = argparse.RawDescriptionHelpFormatter
    train = subparsers.add_parser(
        "train", help="run a training job", epilog=_EXAMPLES, formatter_class=formatter,
        description="Runs a script as a training job, shows its logs, and ends with the job's table.",
    )  # fmt: skip
    jobargs.add(train)
    run = train.add_argument_group("this command")
    run.add_argument("--no-wait", action="store_true", help="print the job's name and return; the job goes on")
    parsing.add_logs(run)
    run.add_argument(
        "--debug",
        action="store_true",
        help="run one process in the foreground with the job's environment, so that pdb works",
    )
    run.add_argument("--dry-run", action="store_true", help="show the plan and start nothing")
    run.add_argument("--json", action="store_true", help="with --dry-run: the plan as JSON; else the result as JSON")
    train.set_defaults(run=run_train)

    plan = subparsers.add_parser(
        "plan", help="show what `train` would start", epilog=_PLAN_EXAMPLES, formatter_class=formatter,
        description="Shows every process of every host that `train` would start, with its arguments and environment.",
    )  # fmt: skip
    jobargs.add(plan)
    plan.add_argument("--json", action="store_true", help="as JSON")
    plan.set_defaults(run=run_plan)


def run_plan(args: argparse.Namespace) -> int:
    """Show the plan."""
    estimator = jobargs.estimator_of(args)
    plan = estimator.plan(parsing.inputs(args.input))
    if args.json:
        console.out_json(plan.to_dict())
    else:
        console.out(str(plan))
    return Exit.OK


def run_train(args: argparse.Namespace) -> int:
    """Start a job and wait for it."""
    if args.dry_run:
        return run_plan(args)
    if args.debug:
        return run_debug(args)
    from estimators.job.errors import TrainingJobError

    estimator = jobargs.estimator_of(args)
    channels = parsing.inputs(args.input)
    if args.no_wait:
        job = estimator.fit(channels, wait=False, job_name=args.name)
        console.out(job.name)
        if sys.stdout.isatty():
            console.say(f"follow it with `fleetfit logs -f {job.name}`, end it with `fleetfit stop {job.name}`.")
        return Exit.OK
    # With --json standard output is the result's alone, however the job ended.
    show = parsing.logs(args) if not args.json else False
    with terminate_like_interrupt() as terminated:
        try:
            job = estimator.fit(channels, wait=True, logs=show, job_name=args.name)
        except KeyboardInterrupt:
            _out_result(args, estimator.latest_training_job)
            if terminated:
                return Exit.TERMINATED
            raise
        except TrainingJobError:
            _out_result(args, estimator.latest_training_job)
            raise
    _out_result(args, job)
    return ended(job)


def _out_result(args: argparse.Namespace, job: TrainingJob | None) -> None:
    """Print the result of a job that is over, where JSON is asked for."""
    if args.json and job is not None and job.status.is_terminal:
        console.out_json(job.result().to_dict())


def run_debug(args: argparse.Namespace) -> int:
    """Run the entry point as one process in this terminal."""
    from estimators.client import debugging

    debugging.check(args.instance_type)
    args.strategy, args.hosts, args.processes, args.option = "none", 1, None, []
    estimator = jobargs.estimator_of(args)
    draft = estimator._draft(parsing.inputs(args.input), args.name)
    draft.check()
    record, code = debugging.run(draft)
    debugging.say_where(record)
    return code


def ended(job: TrainingJob) -> int:
    """Return the exit status for a job that is over."""
    status = str(job.status)
    if status == "Completed":
        return Exit.OK
    if status == "Failed":
        return Exit.FAILED
    why = f" ({job.secondary_status})" if job.secondary_status != "Stopped" else ""
    console.say(f"training job {job.name} was stopped{why}.")
    return Exit.STOPPED


@contextlib.contextmanager
def terminate_like_interrupt() -> Iterator[list[int]]:
    """Give a script that is being trained the time to save when we are asked to end, as after Ctrl-C.

    A signal that we were started to ignore stays ignored: under ``nohup`` a job outlives its terminal.
    """
    received: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        received.append(number)
        ask_to_end()

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heeded = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, on_signal)
    try:
        yield received
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)
