"""Complete commands, options, values and names of jobs in a shell with argcomplete: ``fleetfit completion``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from estimators.cli import Exit, console, jobargs, parsing
from estimators.cli.jobnames import LAST

SHELLS = ("bash", "zsh", "fish")

_EPILOG = """\
examples:
  source <(fleetfit completion bash)
  source <(fleetfit completion zsh)
  fleetfit completion fish > ~/.config/fish/completions/fleetfit.fish
"""
_INPUT_MODES = ("File", "Pipe", "FastFile")
#: The command that starts zsh's completion, because a plain ~/.zshrc does not start the completion.
_ZSH = "(( $+functions[compdef] )) || { autoload -U compinit && compinit -i; }\n"


def add(subparsers: Any) -> None:
    """Add the command ``completion`` to the command line."""
    completion = subparsers.add_parser(
        "completion", help="print a shell's completion script", epilog=_EPILOG,
        formatter_class=parsing.HelpFormatter, description="Prints the completion script of a shell.",
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    completion.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the completion script of a shell."""
    from argcomplete.shell_integration import shellcode

    script = shellcode(["fleetfit"], shell=args.shell)
    console.out((_ZSH if args.shell == "zsh" else "") + script)
    return Exit.OK


def complete(root: argparse.ArgumentParser) -> None:
    """Print the completions that a shell's completion script requests, and exit.

    If no completion script has started this process, do nothing.

    Args:
        root: The parser of the command line.
    """
    import argcomplete

    from estimators.job.fleets import OWN_TYPES
    from estimators.records.record import job_names

    words = {"strategy": tuple(jobargs.STRATEGIES), "instance_type": OWN_TYPES, "input_mode": _INPUT_MODES}
    for action in _actions(root):
        if action.dest in ("job", "jobs"):
            action.completer = lambda **_: [*job_names(), LAST]  # type: ignore[attr-defined]
        elif action.dest in words:
            action.completer = lambda *, found=words[action.dest], **_: found  # type: ignore[attr-defined]
    argcomplete.autocomplete(root, validator=lambda word, start: word.startswith(start))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
