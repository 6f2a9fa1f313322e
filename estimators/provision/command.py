"""Run the command ``python3 -m estimators.provision``: parse its arguments, and print its results and errors."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from estimators.provision.environment import HorovodChoice, Provisioned, ProvisionOptions, lock, provision
from estimators.provision.errors import CommandFailed, ProvisionError
from estimators.provision.packages import Installation
from estimators.provision.progress import StepProgress

_FAILED = 1
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_ROOT = Path(__file__).resolve().parents[2]


def checkout() -> Path | None:
    """Return the checkout that contains this file, or None if fleetfit is installed as a package."""
    return _ROOT if (_ROOT / "setup.py").is_file() else None


def parser(here: Path | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        here: The environment that is used if ``--venv`` is not given. The default is ``.venv`` of the checkout.
    """
    venv = here or _ROOT / ".venv"
    made = argparse.ArgumentParser(
        prog="python3 -m estimators.provision",
        description="Makes the environment in which fleetfit trains. You can run the command again at any time: "
        "finished steps are skipped.",
        epilog="FLEETFIT_TENSORFLOW=cpu|gpu chooses the build of TensorFlow (default: gpu if there is an NVIDIA GPU). "
        "FLEETFIT_HOROVOD=tensorflow|torch|tensorflow,torch chooses the frameworks that Horovod is built for (default: "
        "TensorFlow, and also PyTorch if the installed Horovod has PyTorch; only PyTorch if TensorFlow is not "
        "installed). "
        "FLEETFIT_CACHE is the folder of built wheels (default: ~/.cache/fleetfit).",
    )
    made.add_argument("--venv", type=Path, default=venv, help=f"folder of the environment (default: {venv})")
    made.add_argument("--extras", default="", help="extras of fleetfit to install too, such as test,notebook")
    made.add_argument(
        "--no-editable", action="store_true", help="install fleetfit as a wheel instead of an editable install"
    )
    made.add_argument(
        "--small-torch",
        action="store_true",
        help="also install PyTorch; without a GPU, PyTorch is installed only if there is a build without CUDA",
    )
    made.add_argument(
        "--newest", action="store_true", help="install the newest versions instead of those in constraints.txt"
    )
    made.add_argument(
        "--lock", action="store_true", help="write the newest versions into constraints.txt, and install nothing"
    )
    group = made.add_mutually_exclusive_group()
    group.add_argument("--no-horovod", action="store_true", help="do not install Horovod")
    group.add_argument("--require-horovod", action="store_true", help="fail if there is no compiler to build Horovod")
    return made


def main(arguments: Sequence[str], here: Path | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command's arguments.
        here: The default of ``--venv``, as for :func:`parser`.

    Returns:
        The exit code: 0 on success, 1 if a step failed, 130 after an interrupt, or 141 if the reader of the output has
        closed the pipe.
    """
    parsed = parser(here).parse_args(arguments)
    choice = HorovodChoice.IF_POSSIBLE
    if parsed.no_horovod:
        choice = HorovodChoice.NONE
    elif parsed.require_horovod:
        choice = HorovodChoice.REQUIRED
    started = time.monotonic()
    root = checkout()
    try:
        if parsed.lock:
            if root is None:
                raise ProvisionError(
                    "--lock writes constraints.txt of a checkout, but fleetfit is installed as a package",
                    "Run `make lock` in a checkout of fleetfit.",
                )
            print(f"Wrote {lock(root)}")
            return 0
        options = ProvisionOptions(
            root=root,
            venv=parsed.venv.expanduser().absolute(),
            extras=frozenset(extra.strip() for extra in parsed.extras.split(",") if extra.strip()),
            editable=not parsed.no_editable,
            horovod=choice,
            newest=parsed.newest,
            small_torch=parsed.small_torch,
        )
        report = provision(options, StepProgress())
    except ProvisionError as error:
        print(f"fleetfit: {error}", file=sys.stderr)
        if isinstance(error, CommandFailed):
            print("\n".join(f"    {line}" for line in error.tail), file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("fleetfit: interrupted. To continue from here, run the same command again.", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`). At exit, the interpreter flushes stdout again, and must not fail
        # then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    print(_summary(options, report, time.monotonic() - started))
    if report.horovod_problem is not None:
        print(f"fleetfit: {report.horovod_problem}", file=sys.stderr)
    if (warning := Installation.of_venv(options.venv).interrupted()) is not None:
        print(f"fleetfit: {warning}", file=sys.stderr)
    return 0


def _summary(options: ProvisionOptions, report: Provisioned, elapsed_s: float) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in report.packages.items())
    did = f"made in {elapsed_s:.0f} s" if report.done else "is up to date"
    return f"Environment {options.venv} {did}: {packages}"
