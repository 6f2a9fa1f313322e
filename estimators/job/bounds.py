"""The most that an argument may be: far above what anybody has, far below what would take the caller's memory.

Pure; without them a slip of the keyboard (``processes_per_host=10**9``) would be carried out to the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.names import shown
from estimators.job.errors import ConfigurationError

#: Hosts of a job.
MAX_HOSTS = 1024
#: Ranks of a job: eight for each of as many hosts.
MAX_RANKS = 8192
#: Ten years in seconds. Sums with the time of day stay exact, and every system call takes them.
MAX_SECONDS = 315_360_000
#: Items of a list of an argument.
MAX_ITEMS = 100_000


def is_seconds(value: Any) -> bool:
    """Return whether the value is a number of seconds, 0 to :data:`MAX_SECONDS`."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= MAX_SECONDS


def range_text(value: Any, low: int = 0, high: int = MAX_SECONDS) -> str:
    """What a number may be, for the error about one that is not: ``at least 0``; the most only where it is passed."""
    above = isinstance(value, int | float) and value > high
    return f"{low:,} to {high:,}" if above else f"at least {low:,}"


def items_of(name: str, value: Any, example: str = "") -> list[Any]:
    """Read an argument that is a list of something; any iterable but a text or a dict is taken.

    Args:
        name: The argument's name, for errors.
        value: What was given.
        example: A list that would be taken, as it is written.

    Raises:
        ConfigurationError: it is none, or has more than :data:`MAX_ITEMS` items.
    """
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        such = f" such as {example}" if example else ""
        raise ConfigurationError(f"{name} must be a list{such}; got {shown(value)}.")
    items = list(itertools.islice(value, MAX_ITEMS + 1))
    if len(items) > MAX_ITEMS:
        raise ConfigurationError(f"{name} has too many items; at most {MAX_ITEMS:,} are allowed.")
    return items


def ranks_problem(hosts: int, ranks_per_host: int) -> str | None:
    """What is wrong with a job's size, or None."""
    if hosts > MAX_HOSTS:
        return f"instance_count={shown(hosts)} is too large; a job may have at most {MAX_HOSTS:,} hosts."
    if hosts * ranks_per_host > MAX_RANKS:
        return (
            f"{hosts:,} hosts × {ranks_per_host:,} processes are {hosts * ranks_per_host:,} ranks; a job may have "
            f"at most {MAX_RANKS:,}."
        )
    return None
