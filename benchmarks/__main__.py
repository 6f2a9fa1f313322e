"""``python -m benchmarks [NAME…]``: run benchmarks."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import harness

#: Name -> module and function, in the order in which they run.
BENCHMARKS = {
    "launch": ("benchmarks.launch", "run"),
    "first-step": ("benchmarks.first_step", "run"),
    "steps": ("benchmarks.steps", "run"),
    "steps-two-hosts": ("benchmarks.steps", "run_two_hosts"),
    "steps-collective": ("benchmarks.steps", "run_collective"),
    "steps-parameter-server": ("benchmarks.steps", "run_parameter_server"),
    "steps-overhead": ("benchmarks.overhead", "run"),
    "strategies": ("benchmarks.strategies", "run"),
    "allreduce": ("benchmarks.allreduce", "run"),
    "links": ("benchmarks.links", "run"),
    "peers": ("benchmarks.peers", "run"),
    "torch": ("benchmarks.torch_jobs", "run"),
    "checkpoint": ("benchmarks.checkpoint", "run"),
    "pipe": ("benchmarks.pipe", "run"),
    "pipe-steps": ("benchmarks.pipe_steps", "run"),
    "s3": ("benchmarks.s3", "run"),
    "containers": ("benchmarks.containers", "run"),
    "elastic": ("benchmarks.elastic", "run"),
    "elastic-steps": ("benchmarks.elastic_steps", "run"),
    "elastic-commits": ("benchmarks.elastic_steps", "run_commits"),
    "elastic-steps-torch": ("benchmarks.elastic_steps", "run_torch"),
    "elastic-commits-torch": ("benchmarks.elastic_steps", "run_commits_torch"),
    "ssh": ("benchmarks.ssh", "run"),
    "service": ("benchmarks.service", "run"),
    "containers-steps": ("benchmarks.containers", "run_steps"),
    "slurm": ("benchmarks.slurm", "run"),
    "tuning": ("benchmarks.tuning", "run"),
    "ray": ("benchmarks.ray", "run"),
    "scale": ("benchmarks.scale", "run"),
    "forecast": ("benchmarks.forecast", "run"),
    "forecast-restarts": ("benchmarks.forecast", "run_restarts"),
}
#: What runs if nothing is named: some ten minutes.
DEFAULT = ("launch", "steps")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; or all; default: {' '.join(DEFAULT)}"
    )
    harness.add_arguments(parser)
    options = parser.parse_args(argv)
    names = list(BENCHMARKS) if options.names == ["all"] else options.names or list(DEFAULT)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; allowed: {', '.join(BENCHMARKS)}, all")
    if len(names) == 1:
        module, function = BENCHMARKS[names[0]]
        with harness.terminable():
            getattr(importlib.import_module(module), function)(options)
        return 0
    # What one lacks is no reason to lose the others, which take hours.
    failed = [name for name in names if _apart(name, options)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _apart(name: str, options: argparse.Namespace) -> int:
    """One of several, in a process of its own: what it makes of TensorFlow is not the next one's.

    Returns:
        Its exit code.
    """
    with harness.terminable():
        process = subprocess.Popen([sys.executable, "-m", "benchmarks", name, *harness.words_of(options)])
        try:
            return process.wait()
        except KeyboardInterrupt:  # it has got it too, and tidies up
            process.wait()
            raise
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
