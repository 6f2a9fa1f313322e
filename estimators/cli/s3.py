"""Serve a folder of this machine over the S3 API: ``fleetfit s3``."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from pathlib import Path
from typing import Any

from estimators.cli import Exit, console, parsing, servers
from estimators.job.errors import ConfigurationError

#: Variables that set the credentials; by default, each server creates new ones. These are variables rather than
#: options, because every user of a machine can read the options of a process.
KEY = "FLEETFIT_S3_KEY"
SECRET = "FLEETFIT_S3_SECRET"
#: Variable with the PID of the server that `--env` starts in the background.
PID = "FLEETFIT_S3_PID"

_EXAMPLES = f"""\
examples:
  fleetfit s3 data                        serve until Ctrl-C; print the variables for other terminals
  eval "$(fleetfit s3 data --env)"        serve in the background, and set the variables in this shell
  kill ${PID}                   stop that server

Each folder in DIR is a bucket, and each file in a bucket is an object: data/digits/part-0 is s3://digits/part-0. The
server listens on loopback and accepts only requests that are signed with its key and secret. Each server gets a new key
and secret, unless ${KEY} and ${SECRET} are set. When the printed variables are set, boto3, the
AWS command line and fleetfit's jobs use the server.
"""


def add(subparsers: Any) -> None:
    """Add the command ``s3`` to the command line."""
    command = subparsers.add_parser(
        "s3", help="serve a folder over the S3 API", epilog=_EXAMPLES,
        formatter_class=parsing.HelpFormatter,
        description="Serves a folder of this machine over the S3 API, so that you can try jobs whose data is in S3.",
    )  # fmt: skip
    command.add_argument("folder", metavar="DIR", help="the folder that contains the buckets")
    command.add_argument("--port", type=parsing.port, default=0, metavar="N", help="port (default: a free port)")
    command.add_argument(
        "--env", action="store_true", help="start the server in the background, and print the variables for eval"
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Start the server, and wait until the server stops. With ``--env``, the server runs in the background instead."""
    from estimators.service.s3.server import S3Server

    servers.check_packages()
    folder = Path(args.folder).expanduser()
    if not folder.exists():
        raise ConfigurationError(
            f"there is no folder {str(folder)!r}. Make the folder first: mkdir -p {shlex.quote(str(folder))}"
        )
    if not folder.is_dir():
        raise ConfigurationError(f"{str(folder)!r} is not a folder: name the folder that contains the buckets.")
    key, secret = os.environ.get(KEY) or None, os.environ.get(SECRET) or None
    if (key is None) != (secret is None):
        raise ConfigurationError(f"only one of {KEY} and {SECRET} is set: set both or neither.")
    server = S3Server(folder, port=args.port, key=key, secret=secret, dies_with_us=not args.env)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in server.environment.items()]
    if args.env:
        console.out("\n".join([*lines, f"export {PID}={server.pid}"]))
        return Exit.OK
    return _serve(server, lines)


def _serve(server: Any, lines: list[str]) -> int:
    """Wait until Ctrl-C or SIGTERM arrives or the server exits, and return the exit status."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    try:
        with server:
            console.out("\n".join(lines))
            console.say(f"serving {server.folder} at {server.endpoint}; Ctrl-C ends the server.")
            buckets = sorted(path.name for path in server.folder.iterdir() if path.is_dir())
            if not buckets:
                console.say(
                    f"there is no bucket yet. Make a bucket: mkdir {shlex.quote(str(server.folder / 'my-bucket'))}"
                )
            try:
                server.wait()
            except KeyboardInterrupt:
                return Exit.OK
            console.say(f"the server ended by itself: {server.said()[-500:]}")
            return Exit.UNABLE
    finally:
        signal.signal(signal.SIGTERM, before)
