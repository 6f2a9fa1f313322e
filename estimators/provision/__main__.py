"""``python3 -m estimators.provision``: makes or updates the environment and says how it goes.

The first lines run under any Python 3, so that one that is too old gets a sentence and not a SyntaxError. ``python3
estimators/provision`` is the same without importing ``estimators`` first, which the oldest of them could not read.
"""

# ruff: noqa: UP031, UP036
import sys

if sys.version_info < (3, 10):
    sys.exit(
        # No f-string, which Python 3.5 lacks.
        "fleetfit: Python %d.%d is too old: TensorFlow 2.21 has wheels for 3.10 to 3.13. "
        "Install one of these versions and name it: `make train PYTHON=python3.12`." % sys.version_info[:2]
    )

from pathlib import Path

if not __package__:
    # Run as a folder: Python then put this folder first, where the package's parent belongs.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from estimators.provision.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
