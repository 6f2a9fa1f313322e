"""List, show, follow, stop, resume and wait for existing jobs.

Commands: ``fleetfit list``, ``describe``, ``attach``, ``logs``, ``stop``, ``resume`` and ``wait``.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from estimators.cli import Exit, console, jobnames, parsing
from estimators.job.errors import JobUnreachableError
from estimators.results.summary import seconds_text

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob
    from estimators.records.logs import LogLine

_STATUSES = ("InProgress", "Completed", "Failed", "Stopping", "Stopped")
_POLL_S = 0.1

_DESCRIBE_EXAMPLES = """\
examples:
  fleetfit describe JOB
  fleetfit describe JOB --json | jq .SecondaryStatusTransitions
  fleetfit describe JOB --reproduce                      the commands that run the job again
  fleetfit describe JOB --reproduce python               the notebook's cells, or the source of the function
  fleetfit describe JOB --as-file > job.yaml             for `fleetfit train -f job.yaml`
"""


def add(subparsers: Any) -> None:
    """Add the commands for existing jobs to the command line."""
    formatter = parsing.HelpFormatter

    listing = subparsers.add_parser(
        "list", help="list the jobs, newest first", description="Lists the jobs, newest first."
    )
    listing.add_argument("--status", choices=_STATUSES, help="list only jobs with this status")
    listing.add_argument("-l", "--limit", type=parsing.count, metavar="N", help="list only the newest N jobs")
    form = listing.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the list as JSON")
    form.add_argument("-q", "--quiet", action="store_true", help="print only the names")
    listing.set_defaults(run=run_list)

    describe = subparsers.add_parser(
        "describe", help="show a job's details", epilog=_DESCRIBE_EXAMPLES, formatter_class=formatter,
        description="Shows a job's status, phases, metrics, model and failure.",
    )  # fmt: skip
    describe.add_argument("job", metavar="JOB", help=jobnames.HELP)
    what = describe.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print SageMaker's DescribeTrainingJob response")
    what.add_argument("--provenance", action="store_true", help="print the job's provenance as JSON")
    what.add_argument(
        "--reproduce", nargs="?", const="commands", metavar="FORM", choices=("commands", "python"),
        help="print the commands that run the job again (the default), or its python: the notebook's cells up to the "
        "one that started the job, or the source of the function",
    )  # fmt: skip
    what.add_argument(
        "--as-file", action="store_true", help="print a job file that runs the job again (docs/job-files.md)"
    )
    _add_dispatcher(describe)
    describe.set_defaults(run=run_describe)

    attach = subparsers.add_parser(
        "attach", help="show a job's logs until the job ends", formatter_class=formatter,
        description="Shows a job's logs from the beginning until the job ends, then a table of the result. Ctrl-C ends "
        "this command, not the job. The exit status tells how the job ended.",
        epilog="examples:\n  fleetfit attach JOB\n  fleetfit attach JOB --dispatcher ann@login-1\n",
    )  # fmt: skip
    attach.add_argument("job", metavar="JOB", help=jobnames.HELP)
    parsing.add_logs(attach)
    _add_dispatcher(attach)
    attach.set_defaults(run=run_attach)

    logs = subparsers.add_parser(
        "logs", help="show a job's logs", formatter_class=formatter,
        description="Shows what a job's processes printed, in the order of time.",
        epilog="examples:\n  fleetfit logs JOB --rank 3\n  fleetfit logs -f JOB | grep loss\n",
    )  # fmt: skip
    logs.add_argument("job", metavar="JOB", help=jobnames.HELP)
    logs.add_argument(
        "-f", "--follow", action="store_true", help="follow the logs until the job ends; Ctrl-C ends only this command"
    )
    logs.add_argument("-r", "--rank", type=parsing.whole, metavar="N", help="show only this rank's lines")
    logs.add_argument("-n", "--tail", type=parsing.whole, metavar="N", help="begin with the last N lines")
    parsing.add_all(logs)
    _add_dispatcher(logs)
    logs.set_defaults(run=run_logs)

    stop = subparsers.add_parser(
        "stop",
        help="stop jobs",
        description="Stops jobs: sends SIGTERM, then gives the scripts time to save. This time is --grace, or else "
        "each job's --stop-grace (default: 120 s).",
    )
    stop.add_argument("jobs", nargs="+", metavar="JOB", help=jobnames.HELP)
    stop.add_argument("-w", "--wait", action="store_true", help="wait until the jobs have ended")
    grace = stop.add_mutually_exclusive_group()
    grace.add_argument("--now", action="store_true", help="end the jobs at once; the scripts get no time to save")
    grace.add_argument("--grace", type=parsing.whole, metavar="S", help="give the scripts S seconds to save")
    _add_dispatcher(stop)
    stop.set_defaults(run=run_stop)

    resume = subparsers.add_parser(
        "resume", help="resume a job that failed, was stopped, or lost its supervisor",
        epilog="examples:\n  fleetfit resume JOB\n  fleetfit resume JOB --no-wait && fleetfit logs -f JOB\n",
        formatter_class=formatter,
        description="Starts a job again, under the same name. The script continues from its last checkpoint.",
    )  # fmt: skip
    resume.add_argument("job", metavar="JOB", help=jobnames.HELP)
    resume.add_argument("--no-wait", action="store_true", help="return at once; the job continues")
    parsing.add_logs(resume)
    resume.set_defaults(run=run_resume)

    wait = subparsers.add_parser(
        "wait", help="wait until jobs have ended",
        description="Waits until jobs have ended. The exit status is 0 if all jobs completed. Otherwise, the exit "
        "status is that of the first job on the command line that did not complete.",
    )  # fmt: skip
    wait.add_argument("jobs", nargs="+", metavar="JOB", help=jobnames.HELP)
    wait.add_argument(
        "--timeout", type=parsing.duration, metavar="TIME",
        help="stop waiting after this time, such as 90 (seconds), 15m or 2h",
    )  # fmt: skip
    _add_dispatcher(wait)
    wait.set_defaults(run=run_wait)


def _add_dispatcher(parser: argparse.ArgumentParser) -> None:
    parsing.add_dispatcher(parser, "where the job's supervisor runs, if the job was started from another machine")


def _attach(name: str, args: argparse.Namespace | None = None) -> TrainingJob:
    from estimators.client.attaching import find_job

    if args is None or (args.dispatcher is None and not args.dispatcher_option):
        return find_job(jobnames.resolve(name))
    options = parsing.dispatcher_options(args)
    return find_job(jobnames.resolve(name), dispatcher=args.dispatcher, dispatcher_options=options)


# --- list ---


def run_list(args: argparse.Namespace) -> int:
    """Print a list of the jobs."""
    from estimators.results.listing import JobList
    from estimators.results.tables import terminal_width

    jobs, unreadable = JobList().summaries()
    for line in unreadable:
        console.say(line)
    if args.status:
        jobs = [job for job in jobs if job["status"] == args.status]
    if args.limit:
        jobs = jobs[: args.limit]
    if args.json:
        console.out_json(jobs)
    elif args.quiet:
        if jobs:
            console.out("\n".join(job["name"] for job in jobs))
    elif not jobs:
        console.say("there are no jobs." if not args.status else f"there are no jobs with status {args.status}.")
    else:
        created = console.ago if terminal_width() is not None else console.when
        rows = [
            [
                job["name"],
                _status_text(job),
                job["strategy"],
                str(job["hosts"]),
                created(job["created"]),
                _took(job),
            ]
            for job in jobs
        ]
        header = ("NAME", "STATUS", "STRATEGY", "HOSTS", "CREATED", "TOOK")
        console.out(console.table(header, rows, status_column=1, optional=(3, 2, 5, 4)))
    if not (args.json or args.quiet):
        _say_what_is_kept()
    return Exit.OK


def _say_what_is_kept() -> None:
    from estimators.backends.hosts import kept
    from estimators.records.record import jobs_folder

    for one in kept.find(jobs_folder().parent):
        console.say(f"kept for the next job: {one}")


def _status_text(job: dict[str, Any]) -> str:
    secondary = job["secondary_status"]
    return job["status"] if secondary in (None, job["status"]) else f"{job['status']} ({secondary})"


def _took(job: dict[str, Any]) -> str:
    if job["created"] is None:
        return "-"
    return seconds_text(max(0.0, (job["ended"] or time.time()) - job["created"]))


# --- describe ---


def run_describe(args: argparse.Namespace) -> int:
    """Print a job's details, or a part of the job's record."""
    job = _attach(args.job, args)
    if args.json:
        console.out_json(job.describe())
    elif args.provenance:
        from estimators.records.provenance import read

        console.out_json(read(job.record.path))
    elif args.as_file:
        from estimators.client.jobfiles import writing

        console.out(writing.render(*writing.of_record(job.record)))
    elif args.reproduce:
        return _reproduce(job, args.reproduce)
    else:
        _show(job)
    return Exit.OK


def _show(job: TrainingJob) -> None:
    from estimators.client.functions import values
    from estimators.records.provenance import read
    from estimators.results import display, tables

    width, result = tables.terminal_width(), job.result()
    text = display.job_table(result, colour=console.coloured(), columns=width or 120)
    status = job.record.read_status()
    lines = _steps(status.get("SecondaryStatusTransitions") or [], relative=width is not None)
    caller = read(job.record.path).get("caller") or {}
    if caller.get("command"):
        lines.append(f"started by: {_one_line(str(caller['command']), 300)}")
    if caller.get("notebook"):
        lines.append(f"notebook: {caller['notebook']}, cell {caller.get('execution_count')}")
    lines += [f"warning: {warning}" for warning in job.warnings if warning not in result.warnings]
    lines = tables.paragraphs(lines, width, indent="  ")
    function = values.description_of(job.record)
    if function is not None:
        lines.append(f"  function: {values.place_of(function)}")
        lines += [f"    {line}".rstrip() for line in values.text_of(function).splitlines()]
    if job.failure is not None:
        failure = [job.failure.summary(), *(f"hint: {hint}" for hint in job.failure.hints)]
        lines += ["", *tables.paragraphs(failure, width)]
        lines += ["", detail] if (detail := job.failure.detail()) else []
    console.out(text + "\n".join(lines))


def _steps(steps: Sequence[dict[str, Any]], *, relative: bool) -> list[str]:
    """Return a line for each step of a job, with the step's time.

    Args:
        steps: The elements of ``SecondaryStatusTransitions``.
        relative: Whether to show the age of the first step, and the time from the first step to each other step.
    """
    times = [console.when(step.get("StartTime")) for step in steps]
    if relative and all(step.get("StartTime") for step in steps):
        first = steps[0]["StartTime"] if steps else 0.0
        times = [f"+{seconds_text(step['StartTime'] - first)}" for step in steps]
        times[:1] = [console.ago(first)] * len(times[:1])
    wide = max(map(len, times), default=0)
    return [f"{at:<{wide}}  {step.get('Status')}{_message(step)}" for at, step in zip(times, steps, strict=True)]


def _message(step: dict[str, Any]) -> str:
    message = str(step.get("StatusMessage") or "")
    return f"  {_one_line(message, 160)}" if message else ""


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _reproduce(job: TrainingJob, form: str) -> int:
    from estimators.client.functions import values
    from estimators.records.provenance import read, reproduce

    facts = read(job.record.path)
    function = values.description_of(job.record)
    if form == "commands":
        text = reproduce.script(job.name, facts, request=job.describe(), function=function is not None) if facts else ""
        why = "its provenance is not on record"
    else:
        text = values.text_of(function) if function is not None else reproduce.session(facts)
        why = "the function was typed at a prompt" if function is not None else "a script or a command started the job"
    if not text:
        console.say(f"training job {job.name!r} cannot be reproduced as {form}: {why}.")
        return Exit.UNABLE
    # Written as bytes: a patch contains file contents in any encoding, which must not change.
    sys.stdout.flush()
    sys.stdout.buffer.write(f"{text.rstrip()}\n".encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()
    return Exit.OK


# --- logs ---


def run_logs(args: argparse.Namespace) -> int:
    """Print a job's logs."""
    job = _attach(args.job, args)
    printer = job._printer(all=args.all, one_rank=args.rank is not None)
    portions = job._portions(args.rank, args.follow)
    if args.tail is not None:
        recorded = itertools.takewhile(bool, portions)  # an empty portion ends the output that is on record
        printer.print(last_lines(itertools.chain.from_iterable(recorded), args.tail))
    for lines in portions:
        printer.print(lines)
    printer.finish()
    return Exit.OK


def last_lines(lines: Iterable[LogLine], count: int) -> Iterable[LogLine]:
    """Return the last ``count`` lines.

    All states of a progress bar count as one line, because each state replaces the previous state.
    """
    last: collections.OrderedDict[int, LogLine] = collections.OrderedDict()
    states: dict[tuple[str, str | None], int] = {}  # process -> number of the state that its next output replaces
    for number, line in enumerate(lines):
        process = (line.host, line.process)
        last.pop(states.pop(process, -1), None)
        last[number] = line
        if line.data.endswith(b"\r"):
            states[process] = number
        if len(last) > count:
            last.popitem(last=False)
    return last.values()


# --- attach, stop, wait ---


def run_attach(args: argparse.Namespace) -> int:
    """Show a job's logs until the job ends. Then show the job's result."""
    from estimators.cli.train import ended

    job = _attach(args.job, args)
    job.wait(logs=parsing.logs(args), all=args.all)
    return ended(job)


def run_stop(args: argparse.Namespace) -> int:
    """Ask the named jobs to stop. With ``--wait``, wait until they have ended. Jobs that have ended are not changed."""
    jobs = [_attach(name, args) for name in jobnames.resolve_all(args.jobs)]
    grace = 0.0 if args.now else float(args.grace) if args.grace is not None else None
    result: int = Exit.OK
    asked: list[TrainingJob] = []
    for job in jobs:
        if job.status.is_terminal:
            console.say(f"training job {job.name} has already ended: {job.status}.")
            continue
        try:
            job.stop(grace=grace)
        except JobUnreachableError as error:
            console.say(str(error))
            result = Exit.UNABLE
        else:
            asked.append(job)
    if args.wait:
        for job in asked:
            _wait_for(job, None)
            console.say(f"training job {job.name}: {job.status}.")
    return result


def run_resume(args: argparse.Namespace) -> int:
    """Resume a job, and wait until the job ends unless ``--no-wait`` is given."""
    from estimators.cli.train import ended, terminate_like_interrupt

    job = _attach(args.job)
    if args.no_wait:
        job.resume(wait=False)
        console.out(job.name)
        return Exit.OK
    with terminate_like_interrupt() as terminated:
        try:
            job = job.resume(logs=parsing.logs(args), all=args.all)
        except KeyboardInterrupt:
            if terminated:
                return Exit.TERMINATED
            raise
    return ended(job)


def run_wait(args: argparse.Namespace) -> int:
    """Wait until the named jobs have ended, or until the time of ``--timeout`` has passed."""
    from estimators.cli.train import ended

    jobs = [_attach(name, args) for name in jobnames.resolve_all(args.jobs)]
    deadline = time.monotonic() + args.timeout if args.timeout is not None else None
    result: int = Exit.OK
    for job in jobs:
        if not _wait_for(job, deadline):
            console.say(f"training job {job.name} has not ended after {args.timeout} s.")
            return Exit.TIMEOUT
        outcome = ended(job)
        if outcome == Exit.FAILED and job.failure is not None:
            console.say(f"training job {job.name} failed: {_one_line(job.failure.summary(), 1000)}")
        result = result or outcome
    return result


def _wait_for(job: TrainingJob, deadline: float | None) -> bool:
    while not job.status.is_terminal:
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
