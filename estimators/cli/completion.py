"""``fleetfit completion``: scripts with which shells complete commands, options, their values and names of jobs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from estimators.cli import Exit, console, jobargs
from estimators.cli.jobnames import LAST

SHELLS = ("bash", "zsh", "fish")

_EPILOG = """\
examples:
  source <(fleetfit completion bash)
  source <(fleetfit completion zsh)
  fleetfit completion fish > ~/.config/fish/completions/fleetfit.fish
"""
_INPUT_MODES = ("File", "Pipe", "FastFile")
#: Completion in bash's way needs zsh's own, which a plain ~/.zshrc does not start.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit -i; }
autoload -U +X bashcompinit && bashcompinit
"""
_JOBS = f"$(fleetfit list --quiet 2>/dev/null) {LAST}"


def add(subparsers: Any) -> None:
    """Add the command."""
    completion = subparsers.add_parser(
        "completion", help="print a shell's completion script", epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, description="Prints the completion script of a shell.",
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    completion.set_defaults(run=run, commands=subparsers)


def run(args: argparse.Namespace) -> int:
    """Print a completion script."""
    console.out(script(args.commands, args.shell))
    return Exit.OK


def script(commands: argparse._SubParsersAction[Any], shell: str) -> str:
    """Return the completion script of a shell.

    Args:
        commands: The commands of the command line.
        shell: One of :data:`SHELLS`.
    """
    if shell == "fish":
        return _fish(commands)
    return (_ZSH if shell == "zsh" else "") + _bash(commands.choices)


def values_of(action: argparse.Action) -> tuple[str, ...]:
    """Return the values that an argument may have, where there are a few."""
    from estimators.job.fleets import OWN_TYPES

    if action.choices is not None:
        return tuple(str(choice) for choice in action.choices)
    known = {"strategy": tuple(jobargs.STRATEGIES), "instance_type": OWN_TYPES, "input_mode": _INPUT_MODES}
    return tuple(known.get(action.dest, ()))


def _names_jobs(action: argparse.Action) -> bool:
    return action.dest in ("job", "jobs")


def _of_jobs(commands: Mapping[str, argparse.ArgumentParser]) -> list[str]:
    """Return the commands whose arguments are names of jobs."""
    return [
        name
        for name, command in commands.items()
        if any(_names_jobs(action) and not action.option_strings for action in command._actions)
    ]


def _bash(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    options: list[str] = []
    values: list[str] = []
    for name, command in commands.items():
        flags = [flag for action in command._actions for flag in action.option_strings]
        options.append(f"    {name}) words='{' '.join(flags)}' ;;")
        for action in command._actions:
            words = _JOBS if _names_jobs(action) else " ".join(values_of(action))
            if words and action.option_strings:
                places = "|".join(f"{name}:{flag}" for flag in action.option_strings)
                values.append(f'    {places}) COMPREPLY=($(compgen -W "{words}" -- "$current")); return ;;')
            elif words and not _names_jobs(action) and action.option_strings == []:
                values.append(f'    {name}:{name}) COMPREPLY=($(compgen -W "{words}" -- "$current")); return ;;')
    jobs = "|".join(f"*:{name}" for name in _of_jobs(commands))
    return f"""_fleetfit() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=""
  local previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$current"))
    return
  fi
  if [ "$current" = "=" ]; then
    current=""
  elif [ "$previous" = "=" ]; then
    previous="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  case "$command:$previous" in
{chr(10).join(values)}
  esac
  case "$current:$command" in
    -*:*) ;;
    {jobs})
      COMPREPLY=($(compgen -W "{_JOBS}" -- "$current"))
      return ;;
  esac
  case "$command" in
{chr(10).join(options)}
  esac
  if [[ "$current" == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}}
complete -o default -F _fleetfit fleetfit
"""


def _fish(commands: argparse._SubParsersAction[Any]) -> str:
    jobs = f"(fleetfit list --quiet 2>/dev/null; echo {LAST})"
    lines: list[str] = []
    for shown in commands._choices_actions:
        lines.append(f"complete -c fleetfit -n __fish_use_subcommand -f -a {shown.dest} -d {_quoted(shown.help)}")
    lines += [f"complete -c fleetfit -n __fish_use_subcommand -l {name}" for name in ("help", "version")]
    for name, command in commands.choices.items():
        where = f"complete -c fleetfit -n '__fish_seen_subcommand_from {name}'"
        for action in command._actions:
            values = jobs if _names_jobs(action) else " ".join(values_of(action))
            given = f" -a {_quoted(values)}" if values else ""
            if not action.option_strings:
                if values:
                    lines.append(f"{where} -f{given}")
                continue
            flags = " ".join(_fish_flag(flag) for flag in action.option_strings)
            takes = "" if action.nargs == 0 else " -x" if values else " -r"
            lines.append(f"{where} {flags}{takes}{given} -d {_quoted(action.help)}")
    return "\n".join(lines) + "\n"


def _fish_flag(flag: str) -> str:
    if flag.startswith("--"):
        return f"-l {flag[2:]}"
    return f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"


def _quoted(text: str | None) -> str:
    return "'" + (text or "").replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ") + "'"
