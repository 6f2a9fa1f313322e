"""``fleetfit resize`` and ``fleetfit horovodrun``: elastic jobs."""

from __future__ import annotations

import argparse
import os
from typing import Any

from estimators.commands import Exit, console, parsing

_RESIZE_EXAMPLES = """\
examples:
  fleetfit resize JOB                       show the hosts
  fleetfit resize JOB --add 2
  fleetfit resize JOB --remove algo-2       the others go on without it
  fleetfit resize JOB --to 3
  fleetfit resize JOB --interrupt algo-2 --notice 30    as the spot market does it
"""

_HOROVODRUN_EXAMPLES = """\
examples:
  fleetfit horovodrun -np 2 python train.py --epochs 4
  fleetfit horovodrun -np 8 --min-np 4 --max-np 12 --slots 4 --host-discovery-script discover_hosts.sh python train.py
"""


def add(subparsers: Any) -> None:
    """Add the commands."""
    formatter = argparse.RawDescriptionHelpFormatter
    resize = subparsers.add_parser(
        "resize", help="add hosts to an elastic job, or let some leave", epilog=_RESIZE_EXAMPLES,
        formatter_class=formatter, description="Shows or changes the hosts of a job that runs with ElasticHorovod.",
    )  # fmt: skip
    resize.add_argument("job", metavar="JOB")
    what = resize.add_mutually_exclusive_group()
    what.add_argument("--add", type=parsing.count, metavar="N", help="start N more hosts")
    what.add_argument("--to", type=parsing.count, metavar="N", help="have N hosts: start some, or let the newest leave")
    what.add_argument("--remove", metavar="HOST", help="let a host leave")
    what.add_argument("--interrupt", metavar="HOST", help="interrupt a host as the spot market does")
    resize.add_argument(
        "--notice", type=parsing.whole, default=120, metavar="S", help="the interruption's notice (default: 120 s)"
    )
    resize.set_defaults(run=run_resize)

    run = subparsers.add_parser(
        "horovodrun", help="horovodrun's options, on local hosts", epilog=_HOROVODRUN_EXAMPLES,
        formatter_class=formatter,
        description="Runs a command as horovodrun does, as a job: elastic with --min-np, --max-np or "
        "--host-discovery-script, static under MPI without. Each host is a process group of this machine.",
    )  # fmt: skip
    run.add_argument("-np", "--num-proc", type=parsing.count, required=True, metavar="N", help="processes")
    run.add_argument("--min-np", "--min-num-proc", type=parsing.count, metavar="N", help="go on while there are N")
    run.add_argument("--max-np", "--max-num-proc", type=parsing.count, metavar="N", help="never more than N")
    run.add_argument(
        "--slots", "--slots-per-host", type=parsing.count, metavar="N", help="processes of a host (default: 1)"
    )
    run.add_argument("--host-discovery-script", metavar="FILE", help="prints a line host or host:slots for each host")
    run.add_argument("--reset-limit", type=parsing.whole, metavar="N", help="how often workers may meet anew")
    run.add_argument("--elastic-timeout", type=parsing.count, metavar="S", help="how long too few workers wait")
    run.add_argument(
        "--blacklist-cooldown-range", type=float, nargs=2, metavar=("MIN", "MAX"), help="exclusion, in seconds"
    )
    run.add_argument("command_line", nargs=argparse.REMAINDER, metavar="COMMAND", help="python train.py …")
    run.set_defaults(run=run_horovodrun)


def run_resize(args: argparse.Namespace) -> int:
    """Show or change an elastic job's hosts."""
    from estimators.jobs.handle import TrainingJob

    job = TrainingJob.attach(args.job)
    if args.add is not None:
        console.say(f"started: {', '.join(job.add_hosts(args.add))}")
    elif args.to is not None:
        names = job.hosts
        if args.to > len(names):
            console.say(f"started: {', '.join(job.add_hosts(args.to - len(names)))}")
        for name in names[args.to :]:
            job.remove_host(name)
            console.say(f"{name} leaves")
    elif args.remove is not None:
        job.remove_host(args.remove)
        console.say(f"{args.remove} leaves")
    elif args.interrupt is not None:
        job.interrupt(args.interrupt, float(args.notice))
        console.say(f"{args.interrupt} goes in {args.notice} s")
    else:
        for host in job.membership:
            ranks = ", ".join(str(rank) for rank in host["ranks"])
            print(f"{host['name']:10} {host['state']:10} {f'ranks {ranks}' if ranks else ''}".rstrip())
    return Exit.OK


def run_horovodrun(args: argparse.Namespace) -> int:
    """Run a command as horovodrun does."""
    from estimators.commands.train import run_train

    return run_train(horovodrun_arguments(args))


def horovodrun_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of ``fleetfit train`` that mean the same. Pure but for the parser.

    Raises:
        ConfigurationError: the command is none that ``fit()`` can run.
    """
    from estimators.cli import parser
    from estimators.errors import ConfigurationError

    words = list(args.command_line)
    if words[:1] == ["--"]:
        words = words[1:]
    if words and words[0].rpartition("/")[2].startswith("python"):
        words = words[1:]
    if not words or words[0].startswith("-"):
        raise ConfigurationError(
            f"horovodrun needs a command such as `python train.py --epochs 4`; got {' '.join(args.command_line)!r}."
        )
    per_host = args.slots or 1
    hosts = -(-args.num_proc // per_host)
    if args.num_proc % per_host and args.host_discovery_script is None:
        raise ConfigurationError(f"-np {args.num_proc} is no multiple of --slots {per_host}: hosts are alike here.")
    elastic = args.min_np is not None or args.max_np is not None or args.host_discovery_script is not None
    folder, _, script = words[0].rpartition("/")
    line = ["train", script, "--hosts", str(hosts), "--processes", str(per_host)]
    line += ["--strategy", "elastic_horovod" if elastic else "mpi", "--source-dir", folder or "."]
    if elastic:
        least, most = args.min_np or args.num_proc, args.max_np or args.num_proc
        values: dict[str, Any] = {
            "min_hosts": max(1, least // per_host),
            "min_workers": least,
            "max_hosts": max(hosts, -(-most // per_host)),
            "max_workers": most,
            "slots": args.slots,
            # The supervisor, which runs it, has another working directory.
            "discovery": args.host_discovery_script and os.path.abspath(args.host_discovery_script),
            "reset_limit": args.reset_limit,
            "elastic_timeout": args.elastic_timeout,
            "cooldown": args.blacklist_cooldown_range,
        }
        for name, value in values.items():
            if value is not None:
                line += ["--option", f"{name}={list(value) if isinstance(value, list | tuple) else value}"]
    given = parser().parse_args(line)
    given.script_arguments = words[1:]  # as the command line takes them off, to the letter
    return given
