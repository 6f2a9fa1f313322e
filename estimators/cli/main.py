"""Run the command line ``fleetfit``: parse the arguments, run the command, and turn errors into messages."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from container.contract.names import nearest
from estimators.cli import (
    EXIT_STATUSES,
    Exit,
    calibrate,
    compare,
    completion,
    console,
    elastic,
    hosts,
    image,
    jobs,
    parsing,
    queue,
    report,
    s3,
    serve,
    shard,
    simulate,
    tensorboard,
    track,
    train,
    translating,
    tune,
    ui,
    upkeep,
)

_DESCRIPTION = "Runs distributed training jobs (TensorFlow, PyTorch) with every strategy, on any fleet."
_EPILOG = f"""\
examples:
  fleetfit train train.py --source-dir code --strategy mpi --hosts 2 --input train=data -- --epochs 4
  fleetfit plan train.py --strategy mpi --hosts 2 --processes 2
  fleetfit list
  fleetfit logs -f JOB
  fleetfit doctor

`fleetfit COMMAND --help` lists the options of a command. Jobs are kept under $FLEETFIT_HOME (default: ~/.fleetfit).

{EXIT_STATUSES}"""


class _Parser(argparse.ArgumentParser):
    """A parser that reports a usage error in one line.

    The line names the most similar option or command, and refers to ``--help``.
    """

    def error(self, message: str) -> NoReturn:
        hint = _hint(message)
        message = re.sub(r" \(choose from .*\)$", "", message) if hint else message
        stop = "" if message.endswith(("?", ".")) else "."
        console.say(f"{message}{stop}{hint} See `{self.prog} --help`.")
        self.exit(Exit.USAGE)

    def _print_message(self, message: str, file: Any = None) -> None:
        from estimators.client.printing import write_text

        stream = file if file is not None else sys.stderr
        if message and stream is not None:
            with contextlib.suppress(OSError):  # as argparse does
                write_text(stream, message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = _Parser(prog="fleetfit", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=parsing.HelpFormatter)
    root.add_argument("--version", action="store_true", help="show the version")
    root.add_argument("--traceback", action="store_true", help="show where in fleetfit an error was raised")
    subparsers = root.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=_Parser)
    for module in (
        train,
        jobs,
        queue,
        tune,
        compare,
        report,
        calibrate,
        simulate,
        tensorboard,
        track,
        elastic,
        shard,
        s3,
        serve,
        ui,
        image,
        hosts,
        upkeep,
        completion,
    ):
        module.add(subparsers)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments. The default is the arguments of this process.

    Returns:
        The exit status, as a value of :class:`estimators.cli.Exit`.
    """
    if "_ARGCOMPLETE" in os.environ:
        completion.complete(parser())
    arguments = list(sys.argv[1:] if argv is None else argv)
    console.open_streams()
    try:
        args = _parse(arguments)
    except SystemExit as ended:  # argparse has printed the help or a usage error
        return ended.code if isinstance(ended.code, int) else Exit.USAGE
    if args.version:
        args.run = upkeep.run_version
    elif args.command is None:
        parser().print_help(sys.stderr)
        return Exit.USAGE
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("default", DeprecationWarning)
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from estimators.client.printing import UnwritableError, write_text
    from estimators.job.errors import (
        ConfigurationError,
        FleetfitError,
        JobExistsError,
        JobNotFoundError,
        TrainingJobError,
        TuningJobError,
    )

    try:
        status = int(args.run(args))
        write_text(sys.stdout, "")
        return status
    except KeyboardInterrupt as interrupt:
        from estimators.job.errors import is_told

        if not is_told(interrupt):
            console.say("interrupted.")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        console.close_output()
        return Exit.BROKEN_PIPE
    except UnwritableError as error:
        console.close_output()
        console.say(f"the output cannot be written: {error.strerror}.")
        return Exit.UNABLE
    except (TrainingJobError, TuningJobError) as error:
        _say_error(args, error)
        return Exit.FAILED
    except JobNotFoundError as error:
        _say_error(args, error)
        return Exit.NOT_FOUND
    except (ConfigurationError, JobExistsError) as error:
        _say_error(args, error)
        return Exit.USAGE
    except (FleetfitError, OSError) as error:
        _say_error(args, error)
        return Exit.UNABLE


def _parse(arguments: list[str]) -> argparse.Namespace:
    # Arguments after `--` are passed to the script unchanged. argparse would split those that look like options.
    passed: list[str] | None = None
    if "--" in arguments and "horovodrun" not in arguments[: arguments.index("--")]:
        place = arguments.index("--")
        arguments, passed = arguments[:place], arguments[place + 1 :]
    root = parser()
    arguments, options = _provisioning_options(arguments)
    args, rest = root.parse_known_args(arguments)
    args.rest = options
    command = _command_of(root, args)
    unknown = [*rest, *(getattr(args, "script_arguments", None) or ())]
    if unknown:
        behind = " (the script's arguments go behind `--`)" if hasattr(args, "script_arguments") else ""
        command.error(f"unrecognized arguments: {' '.join(unknown)}{_option_hint(rest, command) or behind}")
    if hasattr(args, "script_arguments"):
        args.script_arguments = passed or []
    elif passed is not None:
        root.error("`--` is for the arguments of a script: only `train`, `plan` and `tune` take it")
    return args


def commands_of(root: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return a mapping from the names of the commands to their parsers."""
    [commands] = [action for action in root._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(commands.choices)


def _command_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.ArgumentParser:
    """Return the parser of the given command, or of the given subcommand, such as ``build`` in ``image build``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and (name := getattr(args, action.dest, None)) is not None:
            return _command_of(action.choices[name], args)
    return parser


def _option_hint(rest: Sequence[str], command: argparse.ArgumentParser) -> str:
    """Return a hint such as ``. Did you mean '--hosts'?`` for the first unknown option.

    Return ``""`` if the command has no similar option.
    """
    wrong = next((word.partition("=")[0] for word in rest if word.startswith("--")), None)
    if wrong is None:
        return ""
    known = [flag for action in command._actions for flag in action.option_strings if flag.startswith("--")]
    same = translating.equivalent(wrong, known)
    guess = same[2:] if same is not None else nearest(wrong[2:], [flag[2:] for flag in known])
    return f". Did you mean '--{guess}'?" if guess is not None else ""


def _provisioning_options(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the arguments for the main parser and the options of ``fleetfit install``.

    Another parser reads the options of ``fleetfit install``. The second list is empty for any other command,
    and with ``--help``.
    """
    command = next((place for place, argument in enumerate(arguments) if not argument.startswith("-")), None)
    if command is None or arguments[command] != "install":
        return arguments, []
    place = command + 1
    if arguments[place : place + 1] and not arguments[place].startswith("-"):
        place += 1
    if set(arguments[place:]) & {"-h", "--help"}:
        return arguments, []
    return arguments[:place], arguments[place:]


def _hint(message: str) -> str:
    """Return a hint such as ``Did you mean …?`` for an unknown command or choice, or ``""`` if nothing is similar."""
    if "invalid choice: " not in message or "choose from" not in message:
        return ""
    given = message.split("invalid choice: ", 1)[1].split(" (", 1)[0].strip("'")
    allowed = message.split("choose from", 1)[1].strip(" )").replace("'", "").split(", ")
    guess = nearest(given, allowed)
    return f" Did you mean {guess!r}?" if guess is not None else ""


def _say_error(args: argparse.Namespace, error: Exception) -> None:
    if args.traceback:
        import traceback

        traceback.print_exception(error)
    from estimators.job.errors import ConfigurationError, JobExistsError

    if isinstance(error, OSError):
        console.say(_reason(error))
        return
    # A job file uses the argument names of the Python interface.
    as_typed = isinstance(error, ConfigurationError | JobExistsError) and getattr(args, "file", None) is None
    console.say(translating.in_options(str(error), getattr(args, "words", None)) if as_typed else str(error))


def _reason(error: OSError) -> str:
    """Return a message for an error of the operating system, such as a folder that this user may not read."""
    said = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {said}."
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the working directory has been removed. Change to another folder."
    return f"{said}. `fleetfit --traceback …` shows where this error was raised."


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    if issubclass(category, DeprecationWarning) and os.sep + "estimators" + os.sep not in filename:
        return  # a warning of a library, which the user cannot change
    console.say(f"warning: {translating.in_options(str(message))}")


if __name__ == "__main__":
    sys.exit(main())
