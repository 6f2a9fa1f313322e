"""Create or update the environment, and print the progress (command ``python3 -m estimators.provision``).

Any Python 3 can run the first lines, so that an old Python prints a message instead of a SyntaxError. The oldest
Pythons cannot parse the package ``estimators``, which ``python3 -m estimators.provision`` imports first. For these
Pythons, use ``python3 estimators/provision``, which runs this file without importing the package.
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
