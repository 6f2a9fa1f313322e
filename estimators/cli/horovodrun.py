"""Translate or refuse horovodrun's options (Horovod 0.28, ``runner/launch.py``) for ``fleetfit horovodrun``.

One table lists the options that set environment variables of the ranks, as in horovodrun. The other table lists the
refused options with their replacements. :mod:`estimators.cli.elastic` handles the remaining options.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from container.contract.frozen import dataclass
from estimators.job.errors import ConfigurationError

_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


@dataclass(frozen=True)
class Variable:
    """An option that sets an environment variable of the ranks.

    Attributes:
        option: The option's name.
        name: The variable's name.
        read: The function that parses the option's value, or None for an option without a value.
        text: The function that converts the parsed value to the variable's value.
        off: The name of the option that turns the feature off, or ``""``.
        choices: The allowed values. An empty tuple allows any value.
    """

    option: str
    name: str
    read: Callable[[str], Any] | None = None
    text: Callable[[Any], str] = str
    off: str = ""
    choices: tuple[str, ...] = ()


VARIABLES = (
    Variable(
        "--fusion-threshold-mb", "HOROVOD_FUSION_THRESHOLD", float, lambda megabytes: str(int(megabytes * 1024 * 1024))
    ),
    Variable("--cycle-time-ms", "HOROVOD_CYCLE_TIME", float),
    Variable("--cache-capacity", "HOROVOD_CACHE_CAPACITY", int),
    Variable("--hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", off="--no-hierarchical-allreduce"),
    Variable("--hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", off="--no-hierarchical-allgather"),
    Variable("--torus-allreduce", "HOROVOD_TORUS_ALLREDUCE", off="--no-torus-allreduce"),
    Variable("--autotune", "HOROVOD_AUTOTUNE", off="--no-autotune"),
    Variable("--autotune-log-file", "HOROVOD_AUTOTUNE_LOG", os.path.abspath),
    Variable("--autotune-warmup-samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", int),
    Variable("--autotune-steps-per-sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", int),
    Variable("--autotune-bayes-opt-max-samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", int),
    Variable("--autotune-gaussian-process-noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", float),
    Variable("--timeline-filename", "HOROVOD_TIMELINE", os.path.abspath),
    Variable("--timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES", off="--no-timeline-mark-cycles"),
    Variable("--no-stall-check", "HOROVOD_STALL_CHECK_DISABLE", off="--stall-check"),
    Variable("--stall-check-warning-time-seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS", int),
    Variable("--stall-check-shutdown-time-seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", int),
    Variable("--mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE", off="--no-mpi-threads-disable"),
    Variable("--num-nccl-streams", "HOROVOD_NUM_NCCL_STREAMS", int),
    Variable("--thread-affinity", "HOROVOD_THREAD_AFFINITY", int),
    Variable("--log-level", "HOROVOD_LOG_LEVEL", str, choices=_LOG_LEVELS),
    Variable("--log-without-timestamp", "HOROVOD_LOG_HIDE_TIME", off="--log-with-timestamp"),
)

#: Refused options: their names, whether they have a value, and the replacement.
REFUSED: tuple[tuple[tuple[str, ...], bool, str], ...] = (
    (
        ("-p", "--ssh-port"),
        True,
        "set Port in the ssh configuration (hosts on this machine have no ssh port)",
    ),
    (("-i", "--ssh-identity-file"), True, "set IdentityFile in the ssh configuration"),
    (
        ("--network-interface", "--network-interfaces"),
        True,
        "leave the option out; processes of one machine connect over loopback",
    ),
    (
        ("--jsrun",),
        False,
        "fleetfit does not support LSF. Leave the option out to use mpirun, or add --min-np to use Gloo",
    ),
    (("--tcp",), False, "choose the transport with --mpi-args='…', which passes options to mpirun"),
    (("--start-timeout",), True, "use RunOptions(start_timeout=…), in Python"),
    (("--gloo-timeout-seconds",), True, "--elastic-timeout sets how long workers wait"),
    (("--output-filename",), True, "each rank's output is in the job's record: `fleetfit logs JOB --rank R`"),
    (
        ("-prefix-timestamp", "--prefix-output-with-timestamp"),
        False,
        "the job's record has the time of each log line",
    ),
    (("--verbose",), False, "`fleetfit plan` shows what a job starts, `fleetfit describe JOB` shows the job"),
    (("--config-file",), True, "write the options of that file on the command line"),
    (("-v", "--version"), False, "`fleetfit --version` shows fleetfit's version, `fleetfit doctor` Horovod's version"),
    (("-cb", "--check-build"), False, "`fleetfit doctor` shows what is installed"),
)


def add(parser: Any) -> None:
    """Add the options to a parser. The functions :func:`refuse` and :func:`environment` read the parsed options."""
    tuning = parser.add_argument_group("Horovod's own settings, as in horovodrun")
    for variable in VARIABLES:
        where = f"set {variable.name} for every rank"
        if variable.read is None:
            tuning.add_argument(variable.option, dest=variable.name, action="store_const", const="1", help=where)
            tuning.add_argument(
                variable.off, dest=variable.name, action="store_const", const="0", help=argparse.SUPPRESS
            )
        else:
            tuning.add_argument(
                variable.option,
                dest=variable.name,
                type=variable.read,
                choices=variable.choices or None,
                metavar=None if variable.choices else "X",
                help=where,
            )
    for names, valued, _ in REFUSED:
        action = {"nargs": None} if valued else {"action": "store_true"}
        parser.add_argument(*names, dest=f"refused{names[-1]}", help=argparse.SUPPRESS, **action)


def refuse(args: argparse.Namespace) -> None:
    """Raise an error if a refused option is used.

    Raises:
        ConfigurationError: a refused option is used. The message names the replacement.
    """
    for names, _, instead in REFUSED:
        if getattr(args, f"refused{names[-1]}"):
            raise ConfigurationError(f"horovodrun's {'/'.join(names)} is not available here: {instead}.")


def environment(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables that the given options set."""
    found: dict[str, str] = {}
    for variable in VARIABLES:
        value = getattr(args, variable.name)
        if value is not None:
            found[variable.name] = value if variable.read is None else variable.text(value)
    return found


def named_hosts(hosts: str | None, hostfile: str | None) -> dict[str, int]:
    """Return the hosts that ``-H`` or ``--hostfile`` names, as a mapping from host names to numbers of slots.

    Args:
        hosts: The value of ``-H``, such as ``server1:2,server2:2``. None if ``--hostfile`` is given.
        hostfile: The path of a file with lines such as ``server1 slots=2``.

    Raises:
        ConfigurationError: the file cannot be read, or a host is invalid or has no number of slots.
    """
    from estimators.backends.ssh import machines

    option = "-H" if hosts is not None else "--hostfile"
    named = (
        machines.parse_list(hosts, option) if hosts is not None else machines.read_file(Path(hostfile or ""), option)
    )
    slots = {machine.name: machine.slots or 0 for machine in named}
    if not slots or not all(slots.values()):
        raise ConfigurationError(
            f"{option} must name hosts with slots: -H HOST:SLOTS,HOST:SLOTS, or lines `HOST slots=N`."
        )
    return slots


def fill(hosts: Mapping[str, int], processes: int) -> dict[str, int]:
    """Return the number of processes of each host.

    The slots of the first host are filled first, then the slots of the next host, as horovodrun does.

    Raises:
        ConfigurationError: the number of slots is smaller than the number of processes.
    """
    if processes > sum(hosts.values()):
        raise ConfigurationError(
            f"-np {processes} is more than the {sum(hosts.values())} slots of {', '.join(hosts)}: name more "
            "hosts, or give more slots."
        )
    found: dict[str, int] = {}
    for name, slots in hosts.items():
        if processes:
            found[name] = min(slots, processes)
            processes -= found[name]
    return found
