"""Collect a job's provenance, the facts needed to run the job again, in a process with low priority.

The supervisor starts it with ``python …/estimators/records/provenance/__main__.py RECORD``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from pathlib import Path

_NICE = 19
_LIMIT_S = 60
#: The number of new objects after which the garbage collector runs. Loading modules creates no garbage.
_OBJECTS = 100_000


def main(arguments: list[str]) -> int:
    """Collect the provenance for a record. The path of the record must be the only argument.

    Returns:
        The exit code: 0 on success, 1 if the provenance cannot be written, or 2 if the command line is invalid.
    """
    if len(arguments) != 1:
        print("usage: python -m estimators.records.provenance RECORD", file=sys.stderr)
        return 2
    signal.alarm(_LIMIT_S)  # by default SIGALRM terminates the process
    lower_priority()
    gc.set_threshold(_OBJECTS)
    from estimators.records.provenance.collecting import collect

    try:
        collect(Path(arguments[0]))
    except OSError as error:
        print(f"fleetfit: the job's provenance cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


def lower_priority() -> None:
    """Lower this process's priority for the processor and the disk, so that the process does not slow the training."""
    import psutil

    own = psutil.Process()
    with contextlib.suppress(OSError, psutil.Error):  # a sandbox may forbid it
        own.nice(_NICE)
        own.ionice(psutil.IOPRIO_CLASS_IDLE)


if __name__ == "__main__":
    if __package__ in (None, ""):  # run as a file: its own folder is first on the path and hides other modules
        sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    from container.system import ending

    ending.run(lambda: main(sys.argv[1:]))
