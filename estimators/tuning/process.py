"""Run a tuning job in a process of its own, which :mod:`estimators.tuning.running` starts.

The process holds the lock of the tuning job's record. It runs the trials on the user's hosts, or follows a tuning job
of a managed service.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from container.system import locks
from estimators.job.errors import FleetfitError
from estimators.records.private_files import give_back, is_full, open_private
from estimators.tuning.record import TuningRecord, is_terminal

#: How long a tuning job waits before it retries on a full disk, in seconds.
_AGAIN_S = 2.0


def main(argv: list[str] | None = None) -> int:
    """Run a tuning job until it has ended, and return the exit code 0.

    If another process runs the tuning job, or if the tuning job has ended, return at once.
    """
    parser = argparse.ArgumentParser(prog="estimators.tuning.process", description=__doc__)
    parser.add_argument("--record", required=True, help="folder of the tuning job's record")
    arguments = parser.parse_args(argv)
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    record = TuningRecord(Path(arguments.record))
    lock = open_private(record.lock_file, os.O_RDWR | os.O_CREAT)
    if not locks.take_from_askers(lock) or is_terminal(record.status()):
        return 0
    while True:
        try:
            _run(record)
        except (OSError, FleetfitError) as error:
            if not is_full(error):
                raise
            # When there is space again, the run continues from the record. The trials continue meanwhile.
            give_back(record.reserve_file)
            time.sleep(_AGAIN_S)
        else:
            return 0


def _run(record: TuningRecord) -> None:
    if record.is_managed:
        from estimators.tuning.managed import ManagedTuning

        ManagedTuning(record).run()
    else:
        from estimators.tuning.study import Tuning

        Tuning(record).run()


if __name__ == "__main__":
    sys.exit(main())
