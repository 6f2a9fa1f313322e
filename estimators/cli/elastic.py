"""Define two commands: ``fleetfit resize`` and ``fleetfit horovodrun``.

``resize`` shows or changes the hosts of an elastic job. ``horovodrun`` runs a command as a job, with the options of
horovodrun.
"""

from __future__ import annotations

import argparse
import os
import shutil
from typing import Any

from estimators.cli import Exit, console, horovodrun, jobnames, parsing
from estimators.job import fleets
from estimators.job.errors import ConfigurationError

_RESIZE_EXAMPLES = """\
examples:
  fleetfit resize JOB                       show the hosts
  fleetfit resize JOB --add 2
  fleetfit resize JOB --remove algo-2       the other hosts continue
  fleetfit resize JOB --to 3
  fleetfit resize JOB --interrupt algo-2 --notice 30    simulate a spot interruption
"""

_HOROVODRUN_EXAMPLES = """\
examples:
  fleetfit horovodrun -np 2 python train.py --epochs 4
  fleetfit horovodrun -np 4 -H server1:2,server2:2 python train.py
  fleetfit horovodrun -np 8 --min-np 4 --max-np 12 --slots 4 --host-discovery-script discover_hosts.sh python train.py
  fleetfit horovodrun -t ssh -np 4 -H server1:2,server2:2 python train.py
"""


def add(subparsers: Any) -> None:
    """Add the commands ``resize`` and ``horovodrun`` to the command line."""
    formatter = parsing.HelpFormatter
    resize = subparsers.add_parser(
        "resize", help="add or remove hosts of an elastic job", epilog=_RESIZE_EXAMPLES,
        formatter_class=formatter,
        description="Shows or changes the hosts of a job with the strategy ElasticHorovod or ElasticTorchDistributed.",
    )  # fmt: skip
    resize.add_argument("job", metavar="JOB", help=jobnames.HELP)
    what = resize.add_mutually_exclusive_group()
    what.add_argument("--add", type=parsing.count, metavar="N", help="add N hosts")
    what.add_argument(
        "--to",
        type=parsing.count,
        metavar="N",
        help="add hosts, or remove the newest hosts, until the job has N hosts",
    )
    what.add_argument("--remove", metavar="HOST", help="remove a host")
    what.add_argument("--interrupt", metavar="HOST", help="simulate a spot interruption of a host")
    resize.add_argument(
        "--notice", type=parsing.whole, metavar="S",
        help="seconds between the notice and the interruption (default: 120)",
    )  # fmt: skip
    resize.set_defaults(run=run_resize)

    run = subparsers.add_parser(
        "horovodrun", help="run a command as a job, with horovodrun's options", epilog=_HOROVODRUN_EXAMPLES,
        formatter_class=formatter,
        description="Runs a command as a job, with horovodrun's options. With --min-np, --max-np or "
        "--host-discovery-script, the job is elastic. Otherwise the job has a fixed size and runs under MPI. By "
        "default, each host is a separate group of processes on this machine. With `-t ssh`, each host is a machine.",
    )  # fmt: skip
    run.add_argument("-np", "--num-proc", type=parsing.count, metavar="N", help="number of processes (required)")
    run.add_argument(
        "--min-np", "--min-num-proc", type=parsing.count, metavar="N",
        help="minimum number of processes (default: -np); with fewer processes, the training pauses",
    )  # fmt: skip
    run.add_argument(
        "--max-np", "--max-num-proc", type=parsing.count, metavar="N",
        help="maximum number of processes (default: -np, or the slots of -H)",
    )  # fmt: skip
    run.add_argument(
        "--slots", "--slots-per-host", type=parsing.count, metavar="N", help="processes on each host (default: 1)"
    )
    run.add_argument(
        "--host-discovery-script", metavar="FILE",
        help="script that prints a line `host` or `host:slots` for each available host",
    )  # fmt: skip
    run.add_argument(
        "--reset-limit", type=parsing.whole, metavar="N",
        help="fail the job if the workers repeat the rendezvous more than N times",
    )  # fmt: skip
    run.add_argument(
        "--elastic-timeout", type=parsing.count, metavar="S", help="how many seconds to wait for enough workers"
    )
    run.add_argument(
        "--blacklist-cooldown-range",
        type=float,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="when a host fails, do not use the host again for MIN to MAX seconds",
    )
    named = run.add_mutually_exclusive_group()
    named.add_argument(
        "-H", "--hosts", metavar="H:N,…",
        help="hosts, each with its number of processes. By default, a host is a group of processes on this machine. "
        "With -t ssh, a host is a machine",
    )  # fmt: skip
    named.add_argument("-hostfile", "--hostfile", metavar="FILE", help="file with a line `HOST slots=N` for each host")
    controller = run.add_mutually_exclusive_group()
    controller.add_argument("--gloo", action="store_true", help="use Gloo (only for elastic jobs)")
    controller.add_argument("--mpi", action="store_true", help="use MPI (only for jobs of a fixed size)")
    run.add_argument(
        "--mpi-args", metavar="OPTIONS", default="", help="more options for mpirun, such as --mpi-args='--map-by …'"
    )
    run.add_argument(
        "--binding-args", metavar="OPTIONS", default="", help="options for mpirun that bind processes to cores"
    )
    run.add_argument("--disable-cache", action="store_true", help="no effect, because nothing is cached between runs")
    horovodrun.add(run)
    run.add_argument(
        "-t", "--instance-type", default=fleets.DEFAULT, metavar="TYPE",
        help=f"instance type of the hosts, such as ssh (default: {fleets.DEFAULT})",
    )  # fmt: skip
    run.add_argument(
        "--backend-option", metavar="NAME=VALUE", action="append", default=[], help="same as for `fleetfit train`"
    )
    parsing.add_dispatcher(run, "same as for `fleetfit train`")
    run.add_argument(
        "command_line", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command, such as `python train.py …`"
    )
    run.set_defaults(run=run_horovodrun, commands=subparsers)


def run_resize(args: argparse.Namespace) -> int:
    """Show or change the hosts of an elastic job."""
    from estimators.client.training_job import TrainingJob

    if args.notice is not None and args.interrupt is None:
        raise ConfigurationError("--notice is only for --interrupt.")
    job = TrainingJob.attach(jobnames.resolve(args.job))
    if args.add is not None:
        console.say(f"started: {', '.join(job.add_hosts(args.add))}")
    elif args.to is not None:
        names = job.hosts
        if args.to > len(names):
            console.say(f"started: {', '.join(job.add_hosts(args.to - len(names)))}")
        for name in names[args.to :]:
            job.remove_host(name)
            console.say(f"{name} leaves the job")
    elif args.remove is not None:
        job.remove_host(args.remove)
        console.say(f"{args.remove} leaves the job")
    elif args.interrupt is not None:
        notice = 120 if args.notice is None else args.notice
        job.interrupt(args.interrupt, float(notice))
        console.say(f"{args.interrupt} is interrupted in {notice} s")
    else:
        for host in job.membership:
            ranks = ", ".join(str(rank) for rank in host["ranks"])
            print(f"{host['name']:10} {host['state']:10} {f'ranks {ranks}' if ranks else ''}".rstrip())
    return Exit.OK


def run_horovodrun(args: argparse.Namespace) -> int:
    """Run a command as a job. The options are the options of horovodrun."""
    from estimators.cli.train import run_train

    return run_train(horovodrun_arguments(args))


def horovodrun_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """Convert horovodrun's arguments to the equivalent arguments of ``fleetfit train``.

    Raises:
        ConfigurationError: fleetfit cannot run the command.
    """
    horovodrun.refuse(args)  # first, because some options need no command: `horovodrun --check-build`
    _check_numbers(args)
    words = list(args.command_line)
    if words[:1] == ["--"]:
        words = words[1:]
    if words and words[0].rpartition("/")[2].startswith("python"):
        words = words[1:]
        if words[:1] == ["-u"]:  # jobs always run Python unbuffered
            words = words[1:]
    module = words[:1] == ["-m"]
    words = words[module:]
    if not words or words[0].startswith("-"):
        raise ConfigurationError(
            f"horovodrun needs a command such as `python train.py --epochs 4`; got {' '.join(args.command_line)!r}."
        )
    elastic = args.min_np is not None or args.max_np is not None or args.host_discovery_script is not None
    _check_controller(args, elastic)
    hosts, per_host, most_hosts = _hosts(args, elastic)
    folder, _, script = ("", "", words[0]) if module else words[0].rpartition("/")
    given: argparse.Namespace = args.commands.choices["train"].parse_args([script])
    given.script_arguments = words[1:]
    given.source_dir = folder or "."
    given.strategy, given.hosts, given.processes = "elastic_horovod" if elastic else "mpi", hosts, per_host
    if elastic:
        least, most = args.min_np or args.num_proc, args.max_np or max(args.num_proc, (most_hosts or 0) * per_host)
        values: dict[str, Any] = {
            "min_hosts": max(1, least // per_host),
            "workers": args.num_proc if args.num_proc != hosts * per_host else None,
            "min_workers": least,
            "max_hosts": max(hosts, -(-most // per_host)),
            "max_workers": most,
            "slots": args.slots,
            # The path must be absolute, because the supervisor that runs the script has another working directory.
            "discovery": args.host_discovery_script and _program(args.host_discovery_script),
            "reset_limit": args.reset_limit,
            "elastic_timeout": args.elastic_timeout,
            "cooldown": args.blacklist_cooldown_range,
        }
        given.option = [
            f"{name}={list(value) if isinstance(value, list | tuple) else value}"
            for name, value in values.items()
            if value is not None
        ]
    elif options := " ".join(filter(None, (args.mpi_args, args.binding_args))):
        given.option = [f"custom_mpi_options={options}"]
    given.instance_type = args.instance_type
    given.dispatcher, given.dispatcher_option = args.dispatcher, args.dispatcher_option
    given.backend_option = list(args.backend_option)
    if args.hosts is not None and not _here(args):
        given.backend_option.append(f"hosts={args.hosts}")
    elif args.hostfile is not None and not _here(args):
        given.backend_option.append(f"host_file={os.path.abspath(args.hostfile)}")
    given.env = [f"{name}={value}" for name, value in horovodrun.environment(args).items()]
    return given


def _program(name: str) -> str:
    """Return a script's absolute path. The script is searched in the working directory, and then in PATH.

    The shell of horovodrun finds scripts in the same way.
    """
    return os.path.abspath(name if os.path.isfile(name) else shutil.which(name) or name)


def _here(args: argparse.Namespace) -> bool:
    """Return whether all hosts are on this machine."""
    return fleets.capabilities(args.instance_type).shared_machine


def _check_numbers(args: argparse.Namespace) -> None:
    """Validate the numbers of processes. Error messages name horovodrun's options.

    Raises:
        ConfigurationError: a number is missing, or two numbers contradict each other.
    """
    if args.num_proc is None:
        raise ConfigurationError(
            "-np is missing: give the number of processes, as in `fleetfit horovodrun -np 2 python train.py`."
        )
    if args.min_np is not None and args.min_np > args.num_proc:
        raise ConfigurationError(f"--min-np {args.min_np} is more than -np {args.num_proc}, the starting size.")
    if args.max_np is not None and args.max_np < args.num_proc:
        raise ConfigurationError(f"--max-np {args.max_np} is less than -np {args.num_proc}, the starting size.")


def _check_controller(args: argparse.Namespace, elastic: bool) -> None:
    """Validate that the job will use the requested controller (Gloo or MPI).

    Raises:
        ConfigurationError: the job will use the other controller.
    """
    if args.gloo and not elastic:
        raise ConfigurationError(
            "--gloo is only for elastic jobs; other jobs run under mpirun. Leave --gloo out, or add "
            f"--min-np {args.num_proc}."
        )
    for option, given in (("--mpi", args.mpi), ("--mpi-args", args.mpi_args), ("--binding-args", args.binding_args)):
        if given and elastic:
            raise ConfigurationError(
                f"{option} is only for jobs under mpirun; elastic jobs run under Gloo, as with horovodrun. Leave out "
                f"{option}, or leave out --min-np, --max-np and --host-discovery-script."
            )


def _hosts(args: argparse.Namespace, elastic: bool) -> tuple[int, int, int | None]:
    """Return the number of hosts, the number of processes per host, and the maximum number of hosts.

    The maximum number is None if the arguments name no hosts.

    Raises:
        ConfigurationError: the hosts would have different numbers of processes, or two options name the hosts.
    """
    if args.hosts is None and args.hostfile is None:
        per_host = args.slots or 1
        if args.num_proc % per_host and not elastic:
            raise ConfigurationError(
                f"-np {args.num_proc} is not a multiple of --slots {per_host}: every host must have --slots processes."
            )
        return -(-args.num_proc // per_host), per_host, None
    option = "-H" if args.hosts is not None else "--hostfile"
    if args.host_discovery_script is not None:
        raise ConfigurationError(
            f"{option} and --host-discovery-script both name the hosts. Give only one of these options."
        )
    named = horovodrun.named_hosts(args.hosts, args.hostfile)
    filled = horovodrun.fill(named, args.num_proc)
    counts = named if elastic else filled  # an elastic job can grow to all named hosts, as with horovodrun
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} on {name}" for name, count in counts.items())
        raise ConfigurationError(
            f"{option}: the numbers of processes differ ({said}); every host must have the same number."
        )
    if _here(args) and set(counts) - {"localhost", "127.0.0.1"}:
        stands = ", ".join(f"algo-{number} for {name}" for number, name in enumerate(counts, 1))
        console.say(f"each host is a group of processes on this machine: {stands}.")
    return len(counts), next(iter(counts.values())), len(counts)
