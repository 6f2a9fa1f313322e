"""Run the entry point as one process in the foreground (``python -m container debug``), for debuggers such as ``pdb``.

The process gets the arguments, environment, code and channels of a rank, and also the terminal.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from container.contract import variables
from container.toolkit.code import code
from container.toolkit.train import install_code, rank_environment, read_environment


class _Terminal:
    """A receiver that prints messages about the installation of requirements."""

    def log(self, line: str) -> None:
        print(line, file=sys.stderr)

    def warn(self, text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)


def main(argv: list[str]) -> int:
    """Replace this process by the entry point. This function returns only if the entry point cannot be run.

    Returns:
        1 if the entry point cannot be run, or 2 if the command line is invalid.
    """
    if argv:
        print(f"python -m container debug takes no arguments, got {argv}", file=sys.stderr)
        return 2
    base = Path(os.environ.get(variables.BASE_DIR) or "/opt/ml")
    try:
        environment = read_environment(base)
        tree = environment.tree
        for directory in tree.directories():
            directory.mkdir(parents=True, exist_ok=True)
        overlay = install_code(environment, _Terminal())
        command = code.entry_command(
            environment.program, tree.code, environment.to_cmd_args(), environment.machine.python
        )
        # No other processes are started, so the runtime folder stays unused.
        env = rank_environment(environment, overlay, Path(tempfile.gettempdir()))
        os.chdir(tree.code)
        os.execvpe(command[0], list(command), env)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"fleetfit: {error}", file=sys.stderr)
        return 1
