"""Run the S3 server as a process: ``python -m estimators.service.s3``.

The server's keys are read from environment variables.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from estimators.job.errors import BackendError
from estimators.service.s3.server import KEY, SECRET
from estimators.service.s3.web import serving
from estimators.service.settings import Keys


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT arrives.

    Raises:
        SystemExit: the server cannot start.
    """
    parser = argparse.ArgumentParser(prog="estimators.service.s3")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args(argv)
    keys = Keys(os.environ.pop(KEY), os.environ.pop(SECRET))
    ends = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # required by sigwait()
    try:
        with serving(arguments.port, Path(arguments.folder), keys) as endpoint:
            print(f"serving at {endpoint}", flush=True)
            signal.sigwait(ends)
    except BackendError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
