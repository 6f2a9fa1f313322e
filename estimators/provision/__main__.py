"""Create or update the environment, and print the progress (command ``python3 -m estimators.provision``).

Any Python 3 can run the first lines, so that an old Python prints a message instead of a SyntaxError. ``python3
estimators/provision`` does the same, but runs these lines without importing ``estimators`` first, which the oldest
Pythons cannot parse.
"""

# ruff: noqa: UP031, UP036
import sys

if sys.version_info < (3, 10):
    sys.exit(
        # No f-string, because Python 3.5 does not support it.
        "fleetfit: Python %d.%d is too old: TensorFlow 2.21 has wheels for 3.10 to 3.13. "
        "Install one of these versions and name it: `make train PYTHON=python3.12`." % sys.version_info[:2]
    )

from pathlib import Path

if not __package__:
    # Run as ``python3 estimators/provision``: Python has put this folder first in sys.path. Put the package's parent
    # there.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from estimators.provision.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
