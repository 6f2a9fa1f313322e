"""Split a file of records into several files: ``fleetfit shard``."""

from __future__ import annotations

import argparse
from typing import Any

from estimators.cli import Exit, parsing
from estimators.job.errors import ConfigurationError

_EXAMPLES = """\
examples:
  fleetfit shard all.tfrecord data/train --shards 8
  fleetfit shard s3://bucket/all.tfrecord data/train --shards 64 --manifest

With ShardedByS3Key, each host of a job gets some files of a channel. If the number of files is a multiple of the number
of hosts, all hosts get about the same amount of data.
"""


def add(subparsers: Any) -> None:
    """Add the command ``shard`` to the command line."""
    shard = subparsers.add_parser(
        "shard", help="split a large file of records into several files", epilog=_EXAMPLES,
        formatter_class=parsing.HelpFormatter,
        description="Splits a TFRecord, RecordIO or text file into files with equal numbers of records.",
    )  # fmt: skip
    shard.add_argument("source", metavar="SRC", help="file to split: a path, file:// URL or s3://bucket/key")
    shard.add_argument("target", metavar="DST", help="the folder for the new files")
    shard.add_argument("--shards", type=parsing.whole, metavar="N", required=True, help="number of files")
    shard.add_argument(
        "--manifest", action="store_true", help="also write DST.manifest, a ManifestFile that lists the new files"
    )
    shard.set_defaults(run=run_shard)


def run_shard(args: argparse.Namespace) -> int:
    """Split a file of records.

    A separate process splits the file: the agent, which is the program that also prepares the data on hosts. The agent
    can parse the formats and read from S3.
    """
    import functools
    import os
    import signal
    import subprocess
    import sys
    from pathlib import Path

    import container
    from container.system import processes
    from estimators.job.inputs import normalise_uri

    program = os.path.join(Path(next(iter(container.__path__))).resolve(), "__main__.py")
    # Absolute URIs do not depend on the program's working directory.
    words = [
        normalise_uri(args.source),
        normalise_uri(args.target),
        "--shards",
        str(args.shards),
        *(["--manifest"] if args.manifest else []),
    ]
    done = subprocess.run(
        [sys.executable, "-I", program, "agent", "divide", *words],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=functools.partial(processes.set_death_signal, signal.SIGTERM, os.getpid()),
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ConfigurationError(lines[-1] if lines else f"shard: the program ended with exit code {done.returncode}.")
    return Exit.OK
