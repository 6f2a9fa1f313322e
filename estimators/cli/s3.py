"""``fleetfit s3``: a folder of this machine as an S3 server."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from estimators.cli import Exit, console, parsing
from estimators.job.errors import ConfigurationError

#: Fix the credentials, which are new ones for each server otherwise. Not options: every user can read those.
KEY = "FLEETFIT_S3_KEY"
SECRET = "FLEETFIT_S3_SECRET"
#: What `--env` tells of the server that it leaves running.
PID = "FLEETFIT_S3_PID"

_EXAMPLES = f"""\
examples:
  fleetfit s3 data                        serve until Ctrl-C; prints what to set in the other terminals
  eval "$(fleetfit s3 data --env)"        serve in the background of this shell, and set it here
  kill ${PID}                   stop that server

A folder in DIR is a bucket, a file in it an object: data/digits/part-0 is s3://digits/part-0. The server is on
loopback and takes requests that are signed with its key and secret only: new ones each time, or ${KEY} and
${SECRET}. boto3, the AWS command line and fleetfit's jobs use it once the printed variables are set.
"""


def add(subparsers: Any) -> None:
    """Add the command."""
    command = subparsers.add_parser(
        "s3", help="serve a folder as S3", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serves a folder of this machine as an S3 server, to try jobs whose data is in S3.",
    )  # fmt: skip
    command.add_argument("folder", metavar="DIR", help="the folder of the buckets")
    command.add_argument("--port", type=parsing.port, default=0, metavar="N", help="the port; default: a free one")
    command.add_argument("--env", action="store_true", help="leave it running and print the variables for eval")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve."""
    from estimators.service.s3.server import S3Server

    folder = Path(args.folder).expanduser()
    if not folder.exists():
        raise ConfigurationError(
            f"there is no folder {str(folder)!r}; make it first: mkdir -p {shlex.quote(str(folder))}"
        )
    if not folder.is_dir():
        raise ConfigurationError(f"{str(folder)!r} is not a folder; a bucket is a folder in the one that is served.")
    key, secret = os.environ.get(KEY) or None, os.environ.get(SECRET) or None
    if (key is None) != (secret is None):
        raise ConfigurationError(f"{KEY} and {SECRET} belong together, and only one of them is set.")
    server = S3Server(folder, port=args.port, key=key, secret=secret, dies_with_us=not args.env)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in server.environment.items()]
    if args.env:
        console.out("\n".join([*lines, f"export {PID}={server.pid}"]))
        return Exit.OK
    return _serve(server, lines)


def _serve(server: Any, lines: list[str]) -> int:
    """Wait for Ctrl-C, SIGTERM, or the server's own end."""

    def ended(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, ended)
    try:
        with server:
            console.out("\n".join(lines))
            console.say(f"serving {server.folder} at {server.endpoint}; Ctrl-C ends it.")
            buckets = sorted(path.name for path in server.folder.iterdir() if path.is_dir())
            if not buckets:
                console.say(f"there is no bucket yet: mkdir {shlex.quote(str(server.folder / 'my-bucket'))}")
            try:
                server.wait()
            except KeyboardInterrupt:
                return Exit.OK
            console.say(f"the server ended by itself: {server.said()[-500:]}")
            return Exit.UNABLE
    finally:
        signal.signal(signal.SIGTERM, before)
