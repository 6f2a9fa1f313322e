"""``python -m benchmarks [NAME…]``: run benchmarks."""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks import harness

#: Name -> module and function, in the order in which they run.
BENCHMARKS = {
    "launch": ("benchmarks.launch", "run"),
    "steps": ("benchmarks.steps", "run"),
    "steps-two-hosts": ("benchmarks.steps", "run_two_hosts"),
    "steps-collective": ("benchmarks.steps", "run_collective"),
    "steps-parameter-server": ("benchmarks.steps", "run_parameter_server"),
    "steps-overhead": ("benchmarks.overhead", "run"),
    "strategies": ("benchmarks.strategies", "run"),
    "checkpoint": ("benchmarks.checkpoint", "run"),
    "pipe": ("benchmarks.pipe", "run"),
    "pipe-steps": ("benchmarks.pipe_steps", "run"),
    "s3": ("benchmarks.s3", "run"),
}
#: What runs if nothing is named: some ten minutes.
DEFAULT = ("launch", "steps")


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: {' '.join(DEFAULT)}"
    )
    harness.add_arguments(parser)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; allowed: {', '.join(BENCHMARKS)}")
    for name in options.names or DEFAULT:
        module, function = BENCHMARKS[name]
        getattr(importlib.import_module(module), function)(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
