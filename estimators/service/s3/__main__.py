"""``python -m estimators.service.s3``: the server as a process, its keys in the environment."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from estimators.service.s3.web import opened
from estimators.service.settings import Keys

#: The variables of the keys, which every user could read in argv.
KEY, SECRET = "FLEETFIT_S3_KEY", "FLEETFIT_S3_SECRET"


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="estimators.service.s3")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args(argv)
    keys = Keys(os.environ.pop(KEY), os.environ.pop(SECRET))
    server = opened(arguments.port, Path(arguments.folder), keys)
    if server is None:
        return 1

    def ended(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    print(f"serving at {server.endpoint}", flush=True)
    server.serve_forever(poll_interval=0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
