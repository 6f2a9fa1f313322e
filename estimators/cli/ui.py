"""Serve pages that show the jobs in a browser: ``fleetfit ui``."""

from __future__ import annotations

import argparse
from typing import Any

from estimators.cli import Exit, console, parsing, servers


def add(subparsers: Any) -> None:
    """Add the command ``ui`` to the command line."""
    command = subparsers.add_parser(
        "ui", help="show jobs in a browser",
        description="Serves pages that show the jobs of $FLEETFIT_HOME. On these pages, you can also stop, resume and "
        "resize jobs. Listens on this machine's loopback until Ctrl-C. Prints a link that works once: the link gives "
        "the browser a cookie. Needs the extra `service`.",
    )  # fmt: skip
    command.add_argument("--port", type=parsing.port, default=0, metavar="N", help="port (default: 0, a free port)")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve the pages until SIGINT or SIGTERM."""
    servers.check_packages()
    from estimators.service.ui.app import serving

    with servers.noted_signals() as told, serving(args.port) as link:
        console.out(link)
        console.say("the link works once, in one browser. Ctrl-C ends the page; jobs continue.")
        servers.wait(told)
    return Exit.OK
