"""Run jobs, and show the plans of jobs: ``fleetfit train`` and ``fleetfit plan``."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from estimators.cli import Exit, console, jobargs, parsing, translating
from estimators.client.interrupts import ask_to_end
from estimators.results import tables

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob

_EXAMPLES = """\
examples:
  fleetfit train train.py
  fleetfit train train.py --source-dir code --strategy mpi --hosts 2 --input train=data/digits -- --epochs 4 --lr 0.1
  fleetfit train train.py -s mpi -n 2 -p 2 --metric 'loss=loss: ([0-9.]+)' --max-run 1h
  job=$(fleetfit train train.py --no-wait) && fleetfit logs -f "$job"
  fleetfit train train.py -s mpi -n 2 --save job.yaml && fleetfit train -f job.yaml -- --lr 0.2

Ctrl-C stops the job: the script then has 5 seconds to save its state (after `fleetfit stop`, it has the time of
--stop-grace). A second Ctrl-C ends the job at once. A job on SageMaker (ml.*)
or with --dispatcher continues after Ctrl-C; to end such a job, use `fleetfit stop`.
"""

_PLAN_EXAMPLES = """\
examples:
  fleetfit plan train.py --strategy mpi --hosts 2 --processes 2
  fleetfit plan train.py --strategy parameter_server --hosts 2 --json
"""

#: Options that have no effect if the command does not wait for a job -> the remedy.
_WAITING = {
    "no-wait": "A debugged script runs in this terminal: leave --no-wait out",
    "notify": "A notification needs this command to wait for a job: leave one of the options out",
    "track": "Later, run `fleetfit track TRACKER JOB`",
    "json": "Later, run `fleetfit describe JOB --json`",
}


def add(subparsers: Any) -> None:
    """Add the commands ``train`` and ``plan`` to the command line."""
    formatter = parsing.HelpFormatter
    train = subparsers.add_parser(
        "train", help="run a training job", epilog=_EXAMPLES, formatter_class=formatter,
        description="Runs a script as a training job. Shows the job's logs, and at the end a table of the result.",
    )  # fmt: skip
    jobargs.add(train)
    run = train.add_argument_group("this command")
    run.add_argument("--no-wait", action="store_true", help="print the job's name and return; the job continues")
    parsing.add_logs(run)
    parsing.repeated(
        run, "--track", "TRACKER", "send metrics, parameters and the model to mlflow[=URI], wandb[=PROJECT] or "
        "tensorboard[=FOLDER]",
    )  # fmt: skip
    parsing.repeated(
        run, "--notify", "COMMAND|URL", "run a command or send a POST request to a URL when the job ends, a metric is "
        "NaN, or a loss is infinite",
    )  # fmt: skip
    run.add_argument(
        "--debug",
        action="store_true",
        help="run the script as one process in the foreground, with the job's environment, so that pdb works",
    )
    run.add_argument("--dry-run", action="store_true", help="show the plan and start nothing")
    run.add_argument("--json", action="store_true", help="print the result as JSON, or the plan if --dry-run is given")
    train.set_defaults(run=run_train)

    plan = subparsers.add_parser(
        "plan", help="show what `train` would start", epilog=_PLAN_EXAMPLES, formatter_class=formatter,
        description="Shows the processes that `train` would start on each host, with their arguments and environment.",
    )  # fmt: skip
    jobargs.add(plan)
    form = plan.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the plan as JSON")
    form.add_argument("--schema", action="store_true", help="print the JSON schema of job files, for editors")
    plan.add_argument(
        "--whole", action="store_true", help="show all hosts and processes in full; by default, some are left out"
    )
    plan.set_defaults(run=run_plan)


def run_plan(args: argparse.Namespace) -> int:
    """Print the plan of a job, or with ``--schema`` the JSON schema of job files. Nothing is started."""
    if getattr(args, "schema", False):
        from estimators.client.jobfiles.schema import schema

        console.out_json(schema())
        return Exit.OK
    described = jobargs.job_of(args)
    with described.located():
        plan = described.estimator.plan(described.inputs, args.name, check=True)
    if args.json:
        console.out_json(plan.to_dict())
    else:
        width = tables.terminal_width()
        lines = plan.text(whole=getattr(args, "whole", False), width=width).split("\n")
        text = "\n".join(translating.in_options(line) if line.startswith("warning: ") else line for line in lines)
        console.out(tables.prose(text, width))
    return Exit.OK


def run_train(args: argparse.Namespace) -> int:
    """Start a job, and wait until the job ends unless ``--no-wait`` is given.

    With ``--dry-run``, print the plan instead. With ``--debug``, run the script in this terminal instead.
    """
    if args.dry_run:
        return run_plan(args)
    from estimators.client import notifying, trackers
    from estimators.job.errors import ConfigurationError, TrainingJobError

    other = "--debug" if args.debug else "--no-wait" if args.no_wait else None
    for option, remedy in _WAITING.items():
        if other is not None and f"--{option}" != other and getattr(args, option.replace("-", "_")):
            raise ConfigurationError(f"--{option} cannot be combined with {other}. {remedy}.")
    if args.debug:
        return run_debug(args)
    callbacks = [*(trackers.parse(text) for text in args.track), *(notifying.parse(text) for text in args.notify)]
    described = jobargs.job_of(args)
    estimator, channels = described.estimator, described.inputs
    if args.no_wait:
        with described.located():
            job = estimator.fit(channels, wait=False, job_name=args.name)
        console.out(job.name)
        if sys.stdout.isatty():
            console.say(f"`fleetfit logs -f {job.name}` follows the job, `fleetfit stop {job.name}` stops it.")
        return Exit.OK
    # With --json, only the result is written to standard output, even if the job fails.
    show = parsing.logs(args) if not args.json else False
    with terminate_like_interrupt() as terminated:
        try:
            with described.located():
                job = estimator.fit(
                    channels, wait=True, logs=show, job_name=args.name, callbacks=callbacks, all=args.all
                )
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
    """Print the result of a job as JSON if ``--json`` is given and the job has ended."""
    if args.json and job is not None and job.status.is_terminal:
        console.out_json(job.result().to_dict())


def run_debug(args: argparse.Namespace) -> int:
    """Run the entry point as one process in this terminal, and return the exit code of the process."""
    from estimators.client import debugging

    args.strategy, args.processes, args.option = None, None, []
    described = jobargs.job_of(args, distribution=None, instance_count=1)
    debugging.check(described.estimator.instance_type)
    with described.located():
        draft = described.estimator._draft(described.inputs, args.name)
        draft.check()
    record, code = debugging.run(draft)
    print(f"the run's files: {record.tree(record.hosts[0]).base}", file=sys.stderr)
    return code


def ended(job: TrainingJob) -> int:
    """Return the exit status for a job that has ended. Print a message if the job was stopped.

    Returns:
        0 if the job completed, 1 if the job failed, or 4 if the job was stopped.
    """
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
    """Return a context in which SIGTERM and SIGHUP stop the job as Ctrl-C does.

    The script then has time to save its state. If this process was started with one of these signals ignored, the
    signal stays ignored. Therefore a job under ``nohup`` continues after its terminal is closed.

    The context's value is a list to which the number of each received signal is added.
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
