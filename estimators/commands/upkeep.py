"""``fleetfit doctor``, ``clean``, ``install``, ``version`` and ``completion``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from estimators.commands import Exit, console, parsing
from estimators.errors import ConfigurationError

_CLEAN_EXAMPLES = """\
examples:
  fleetfit clean                          what a crashed machine left behind
  fleetfit clean --older-than 7d          and jobs that ended more than a week ago
  fleetfit clean --keep 20 --yes          and all jobs but the newest 20, without asking
  fleetfit clean --job NAME --dry-run     what removing that job would free
  fleetfit clean --caches                 and the caches: built wheels, listings, digests

A running job is never removed.
"""

_INSTALL_EXAMPLES = """\
examples:
  fleetfit install                        the whole environment of a checkout: TensorFlow, OpenMPI, Horovod
  fleetfit install --extras test,notebook
  fleetfit install horovod                Horovod alone, built for the environment that runs this
"""


def add(subparsers: Any) -> None:
    """Add the commands."""
    formatter = argparse.RawDescriptionHelpFormatter

    doctor = subparsers.add_parser(
        "doctor", help="show what is installed and what is missing",
        description="Shows what is installed, what each strategy and backend lacks, and the remedy.",
    )  # fmt: skip
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.add_argument("--deep", action="store_true", help="also import Horovod and start two ranks (seconds)")
    doctor.set_defaults(run=run_doctor)

    clean = subparsers.add_parser(
        "clean", help="remove old jobs, caches and leftovers", epilog=_CLEAN_EXAMPLES, formatter_class=formatter,
        description="Removes what is not needed any more, says what it frees, and asks first.",
    )  # fmt: skip
    clean.add_argument("--older-than", metavar="AGE", help="jobs that ended before: 12h, 7d, 2w")
    clean.add_argument("--keep", type=parsing.whole, metavar="N", help="all jobs but the newest N")
    clean.add_argument("--job", metavar="NAME", action="append", default=[], help="this job; may be repeated")
    clean.add_argument("--caches", action="store_true", help="the caches; all of them are made again when needed")
    clean.add_argument("--dry-run", action="store_true", help="show it and remove nothing")
    clean.add_argument("-y", "--yes", action="store_true", help="do not ask")
    clean.set_defaults(run=run_clean)

    install = subparsers.add_parser(
        "install", help="install what trainings need", epilog=_INSTALL_EXAMPLES, formatter_class=formatter,
        description="Makes or completes the environment. Takes the options of `python -m estimators.provision`.",
    )  # fmt: skip
    install.add_argument("what", nargs="?", choices=("all", "horovod", "pipe"), default="all", help="default: all")
    install.set_defaults(run=run_install)

    version = subparsers.add_parser("version", help="show the version", description="Shows fleetfit's version.")
    version.set_defaults(run=run_version)

    completion = subparsers.add_parser(
        "completion", help="print a shell's completion script", formatter_class=formatter,
        description="Prints a completion script.",
        epilog="examples:\n  source <(fleetfit completion bash)\n  source <(fleetfit completion zsh)\n",
    )  # fmt: skip
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=run_completion)


def run_doctor(args: argparse.Namespace) -> int:
    """Show what is installed."""
    from estimators import doctor

    report = doctor.diagnose(deep=args.deep)
    if args.json:
        console.out_json(report.to_dict())
    else:
        console.out(report.to_text(colour=console.coloured()))
    return Exit.OK if report.healthy else Exit.FAILED


def run_clean(args: argparse.Namespace) -> int:
    """Remove what is not needed any more."""
    from estimators import clean
    from estimators.machine import format_bytes

    selection = clean.Selection(
        older_than_s=clean.parse_age(args.older_than) if args.older_than is not None else None,
        keep=args.keep,
        jobs=tuple(args.job),
        caches=args.caches,
    )
    items = clean.find(selection)
    if not items:
        console.say("there is nothing to remove.")
        return Exit.OK
    rows = [[item.kind.value, format_bytes(item.bytes), item.name, item.why] for item in items]
    console.out(console.table(("WHAT", "SIZE", "NAME", "WHY"), rows))
    on_disk = sum(item.bytes for item in items if item.kind is not clean.Kind.PROCESS)
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
        if removal.error is None and removal.item.kind is not clean.Kind.PROCESS
    )
    console.say(f"removed {len(removals) - len(failed)} of {len(items)}, {format_bytes(freed)} freed.")
    for removal in failed:
        console.say(f"{removal.item.name} is still there: {removal.error}.")
    return Exit.UNABLE if failed else Exit.OK


def run_install(args: argparse.Namespace) -> int:
    """Install what trainings need."""
    if args.what != "all":
        if args.rest:
            raise ConfigurationError(f"`fleetfit install {args.what}` takes no options, got {' '.join(args.rest)!r}.")
        return _install_one(args.what)
    root = Path(__file__).resolve().parents[2]
    if not (root / "setup.py").is_file():
        raise ConfigurationError(
            "`fleetfit install` completes a checkout of fleetfit, and this one is installed as a package. Install the "
            "extras with pip (`pip install 'fleetfit[tensorflow,horovod]'`), then run "
            "`fleetfit install horovod` and `fleetfit install pipe`."
        )
    from estimators.provision.command import main

    return main(args.rest)


def _install_one(what: str) -> int:
    """Compile and install Horovod, or the reader of Pipe mode."""
    from estimators.provision import horovod, pipe_reader
    from estimators.provision.errors import CommandFailed, ProvisionError
    from estimators.provision.packages import Installation
    from estimators.provision.progress import Progress
    from estimators.provision.wheels import WheelCache, cache_root

    if sys.prefix == sys.base_prefix:
        raise ConfigurationError(
            f"{sys.executable} is not in a virtual environment, and nothing is installed into a system's Python. "
            "Make one (`python3 -m venv .venv`), install fleetfit into it, and run this again from there."
        )
    progress = Progress(total=1)
    try:
        installation = Installation.of_venv(Path(sys.prefix))
        if what == "pipe":
            with progress.step("reader of Pipe mode"):
                pipe_reader.install(installation, on_detail=progress.detail)
            return Exit.OK
        with progress.step("Horovod"):
            horovod.install(
                installation, WheelCache(root=cache_root()), on_detail=progress.detail, on_note=progress.note
            )
    except ProvisionError as error:
        console.say(str(error))
        if isinstance(error, CommandFailed):
            sys.stderr.write("".join(f"    {line}\n" for line in error.tail))
        return Exit.UNABLE
    return Exit.OK


def run_version(args: argparse.Namespace) -> int:
    """Show the version."""
    console.out(f"fleetfit {version_text()}")
    return Exit.OK


def version_text() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fleetfit")
    except PackageNotFoundError:
        return "(not installed)"


def run_completion(args: argparse.Namespace) -> int:
    """Print a completion script."""
    from estimators.cli import parser

    console.out(_completion_script(parser(), args.shell))
    return Exit.OK


#: Commands whose arguments are names of jobs.
_OF_JOBS = ("describe", "logs", "stop", "wait")


def _completion_script(root: argparse.ArgumentParser, shell: str) -> str:
    [commands] = [action for action in root._actions if isinstance(action, argparse._SubParsersAction)]
    cases: list[str] = []
    for name, command in commands.choices.items():
        options = [option for action in command._actions for option in action.option_strings]
        cases.append(f"    {name}) words={' '.join(options)!r} ;;")
    jobs = "|".join(_OF_JOBS)
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{head}_fleetfit() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands.choices)} --help --version" -- "$current"))
    return
  fi
  if [ "${{COMP_WORDS[COMP_CWORD-1]}}" = "--job" ]; then
    COMPREPLY=($(compgen -W "$(fleetfit list --quiet 2>/dev/null)" -- "$current"))
    return
  fi
  case "$current:$command" in
    -*:*) ;;
    *:{jobs.replace("|", "|*:")})
      COMPREPLY=($(compgen -W "$(fleetfit list --quiet 2>/dev/null)" -- "$current"))
      return ;;
  esac
  case "$command" in
{chr(10).join(cases)}
  esac
  if [[ "$current" == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}}
complete -o default -F _fleetfit fleetfit
"""
