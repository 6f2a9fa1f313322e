"""Run TensorBoard on the event files of all jobs: ``fleetfit tensorboard``."""

from __future__ import annotations

import argparse
from typing import Any

from estimators.cli import jobnames, parsing


def add(subparsers: Any) -> None:
    """Add the command ``tensorboard`` to the command line."""
    parser = subparsers.add_parser(
        "tensorboard", help="open TensorBoard on all jobs",
        description="Runs TensorBoard on the event files of all jobs, or of the named jobs. Adds jobs that start "
        "later. On each host of a job, looks for event files in $SM_OUTPUT_DIR/tensorboard and in the folders of the "
        "outputs, the model and the checkpoints. (On rank 0, cluster.callbacks() writes event files to "
        "$SM_OUTPUT_DIR/tensorboard.)",
    )  # fmt: skip
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"only these jobs: {jobnames.HELP}")
    parser.add_argument("--port", type=parsing.whole, default=0, metavar="N", help="port (default: a free port)")
    parser.add_argument("--list", action="store_true", help="list the event files without starting TensorBoard")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run TensorBoard until Ctrl-C, or list the event files."""
    from estimators.cli import tensorboard_server

    jobs = jobnames.resolve_all(args.jobs)
    if args.list:
        return tensorboard_server.show(jobs)
    return tensorboard_server.serve(jobs, port=args.port)
