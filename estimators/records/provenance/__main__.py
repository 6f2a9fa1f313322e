"""``python …/estimators/records/provenance/__main__.py RECORD``: collects a job's provenance, out of the training's
way."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_NICE = 19
_LIMIT_S = 60
#: ioprio_set(2): IOPRIO_WHO_PROCESS, and the idle class, which gets the disk when nobody else wants it.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13


def main(arguments: list[str]) -> int:
    """Collect for the record that is the only argument."""
    if len(arguments) != 1:
        print("usage: python -m estimators.records.provenance RECORD", file=sys.stderr)
        return 2
    signal.alarm(_LIMIT_S)  # SIGALRM's default is to end the process
    lower_priority()
    from estimators.records.provenance.collecting import collect

    try:
        collect(Path(arguments[0]))
    except OSError as error:
        print(f"fleetfit: the job's provenance cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


def lower_priority() -> None:
    """Let the training have the processor and the disk first."""
    os.nice(_NICE)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)  # only a hint: failing is harmless


if __name__ == "__main__":
    if __package__ in (None, ""):  # run as a file: its own folder comes first on the path and hides other modules
        sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    sys.exit(main(sys.argv[1:]))
