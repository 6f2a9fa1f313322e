"""Write the report of a job as one HTML file: ``fleetfit report JOB``."""

from __future__ import annotations

import argparse
from typing import Any

from estimators.cli import Exit, console, jobnames, parsing


def add(subparsers: Any) -> None:
    """Add the command ``report`` to the command line."""
    parser = subparsers.add_parser(
        "report", help="write a job's report as one HTML file",
        description="Writes one HTML file with a job's table, plots, ranks and provenance. The file can be opened "
        "without a network.",
    )  # fmt: skip
    parser.add_argument("job", metavar="JOB", help=f"{jobnames.HELP}; or the path of a result.json")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write (default: JOB.html)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and write no file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report of a job as an HTML file, or print the result as JSON."""
    from estimators.client.compare import compare

    comparison = compare(jobnames.resolve_unless_path(args.job))
    result = comparison.results[0]
    if args.json:
        console.out_json(result.to_dict())
        return Exit.OK
    file = args.output or f"{result.job_name}.html"
    parsing.check_file("--output", file)
    console.out(str(comparison.report(file)))
    return Exit.OK
