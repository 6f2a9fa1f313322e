"""Whose turn it is in a queue of jobs on one machine. Pure.

Jobs start in the order of their priority, then of their arrival, each as soon as what it needs is free. None overtakes
one that is ahead, so that a large job is not kept waiting by small ones; a job that needs more than the machine has
starts when nothing else of the queue runs. One that may be preempted makes room for one of higher priority.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.names import shown, unknown
from estimators.job.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
#: The farthest from 0 that a priority may be.
MOST_URGENT = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """What a job needs of a machine, or what there is.

    Attributes:
        cores: Processor cores.
        gpus: GPUs.
        memory_gb: Memory, in gigabytes (10**9 bytes).
    """

    cores: float = 0.0
    gpus: float = 0.0
    memory_gb: float = 0.0

    def fits(self, free: Resources) -> bool:
        """Return whether there is enough of everything."""
        return all(getattr(self, name) <= getattr(free, name) + 1e-9 for name in NAMES)

    def minus(self, others: Iterable[Resources]) -> Resources:
        """Return what is left when others have what they need."""
        taken = list(others)
        return Resources(**{name: getattr(self, name) - sum(getattr(one, name) for one in taken) for name in NAMES})

    def __str__(self) -> str:
        """Say what there is of it: ``2 cores, 1 GPU, 4 GB``."""
        parts = [
            f"{amount:g} {unit}{'s' if amount != 1 and unit != 'GB' else ''}"
            for amount, unit in ((self.cores, "core"), (self.gpus, "GPU"), (self.memory_gb, "GB"))
            if amount
        ]
        return ", ".join(parts) or "nothing"


NAMES = tuple(field.name for field in dataclasses.fields(Resources))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A job in a queue.

    Attributes:
        job: Its name.
        priority: Higher ones go first.
        since: When it came, in seconds since the epoch.
        needs: What it needs.
        running: Whether its turn has come.
        preemptible: Whether it makes room for one of higher priority.
    """

    job: str
    priority: int
    since: float
    needs: Resources
    running: bool = False
    preemptible: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Entry:
        """Read what :meth:`to_dict` gave; what a newer version added is left out.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        needs = Resources(**{name: float(values["needs"].get(name, 0.0)) for name in NAMES})
        return cls(
            job=str(values["job"]), priority=int(values["priority"]), since=float(values["since"]), needs=needs,
            running=bool(values["running"]), preemptible=bool(values.get("preemptible")),
        )  # fmt: skip


def order(entries: Iterable[Entry]) -> list[Entry]:
    """Return those that wait, the next one first."""
    waiting = (entry for entry in entries if not entry.running)
    return sorted(waiting, key=lambda entry: (-entry.priority, entry.since, entry.job))


def starts(entries: Iterable[Entry], job: str, machine: Resources) -> bool:
    """Return whether it is a job's turn.

    Args:
        entries: All of the queue.
        job: The job, which waits.
        machine: What the machine has.
    """
    known = list(entries)
    waiting = order(known)
    if not waiting or waiting[0].job != job:
        return False
    return _has_room(waiting[0], [entry for entry in known if entry.running], machine)


def makes_room(entries: Iterable[Entry], job: str, machine: Resources) -> bool:
    """Return whether a job is to end its attempt for the one that is next.

    As few make room as are needed, those of the lowest priority first, of these the latest; nobody does where it would
    not help.

    Args:
        entries: All of the queue.
        job: The job, which runs.
        machine: What the machine has.
    """
    known = list(entries)
    waiting = order(known)
    if not waiting:
        return False
    first = waiting[0]
    staying = [entry for entry in known if entry.running]
    willing = [entry for entry in staying if entry.preemptible and entry.priority < first.priority]
    going: list[str] = []
    for entry in sorted(willing, key=lambda entry: (entry.priority, -entry.since, entry.job)):
        if _has_room(first, staying, machine):
            break
        staying.remove(entry)
        going.append(entry.job)
    return job in going and _has_room(first, staying, machine)


def _has_room(entry: Entry, running: list[Entry], machine: Resources) -> bool:
    return not running or entry.needs.fits(machine.minus(one.needs for one in running))


def check_name(value: object) -> str:
    """Return the name of a queue.

    Raises:
        ConfigurationError: it is none.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigurationError(
            f"RunOptions(queue=…) must be the name of a queue, 1 to 32 letters, digits, '-' and '_'; got "
            f"{shown(value)}."
        )
    return value


def check_priority(value: object) -> int:
    """Return a priority.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST_URGENT:
        raise ConfigurationError(
            f"RunOptions(priority=…) must be a whole number from -{MOST_URGENT} to {MOST_URGENT} (jobs "
            f"with the highest number start first); got {shown(value)}."
        )
    return value


def check_needs(value: object) -> dict[str, float]:
    """Return what a job is said to need.

    Raises:
        ConfigurationError: a name or a number is wrong.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"RunOptions(needs=…) must be a dict such as {{'cores': 2}}; got {shown(value)}.")
    for name, amount in value.items():
        if name not in NAMES:
            raise ConfigurationError(unknown("RunOptions(needs=…)", name, NAMES))
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < 1e9:
            raise ConfigurationError(
                f"RunOptions(needs={{{name!r}: …}}) must be a number, at least 0; got {shown(amount)}."
            )
    return {name: float(amount) for name, amount in value.items()}
