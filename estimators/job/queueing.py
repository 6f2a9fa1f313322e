"""Decides whose turn it is in a queue of jobs on one machine. Pure.

Jobs start in the order of their priority, then of their arrival, each as soon as its resources are free. No job
overtakes one that is ahead, so small jobs do not delay a large one. A job that needs more than the machine has starts
when no other job of the queue runs. A preemptible job makes room for a job of higher priority.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract import rules

#: #: The largest absolute value of a priority.
MOST_URGENT = 1000
#: The rule for a queue's name.
check_name = rules.text(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", "not the name of a queue: use 1 to 32 letters, digits, '-' and '_'"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that a job needs, or that a machine has.

    Attributes:
        cores: Processor cores.
        gpus: GPUs.
        memory_gb: Memory, in gigabytes (10**9 bytes).
    """

    cores: float = 0.0
    gpus: float = 0.0
    memory_gb: float = 0.0

    def fits(self, free: Resources) -> bool:
        """Return whether the free resources are sufficient."""
        return all(getattr(self, name) <= getattr(free, name) + 1e-9 for name in NAMES)

    def minus(self, others: Iterable[Resources]) -> Resources:
        """Return the resources that remain if others use theirs."""
        taken = list(others)
        return Resources(**{name: getattr(self, name) - sum(getattr(one, name) for one in taken) for name in NAMES})

    def __str__(self) -> str:
        """Return a text such as ``2 cores, 1 GPU, 4 GB``."""
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
        job: The job's name.
        priority: The priority; jobs with higher ones start first.
        since: The time of arrival, in seconds since the epoch.
        needs: The resources that the job needs.
        running: Whether the job has had its turn and runs.
        preemptible: Whether the job makes room for one of higher priority.
    """

    job: str
    priority: int
    since: float
    needs: Resources
    running: bool = False
    preemptible: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Entry:
        """Read the JSON form of ``dataclasses.asdict``.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        return cls(**{**values, "needs": Resources(**values["needs"])})


def order(entries: Iterable[Entry]) -> list[Entry]:
    """Return the waiting entries, the next one first."""
    waiting = (entry for entry in entries if not entry.running)
    return sorted(waiting, key=lambda entry: (-entry.priority, entry.since, entry.job))


def starts(entries: Iterable[Entry], job: str, machine: Resources) -> bool:
    """Return whether it is a job's turn.

    Args:
        entries: All entries of the queue.
        job: The name of the waiting job.
        machine: The machine's resources.
    """
    known = list(entries)
    waiting = order(known)
    if not waiting or waiting[0].job != job:
        return False
    return _has_room(waiting[0], [entry for entry in known if entry.running], machine)


def makes_room(entries: Iterable[Entry], job: str, machine: Resources) -> bool:
    """Return whether a running job must end its attempt for the next one in the queue.

    As few jobs as necessary make room: those of the lowest priority first, and among these the latest. If that would
    not be sufficient, no job makes room.

    Args:
        entries: All entries of the queue.
        job: The name of the running job.
        machine: The machine's resources.
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


def check_needs(where: str, value: Any) -> dict[str, float]:
    """Return the resources that a job needs: the rule of ``RunOptions(needs=…)``."""
    if not isinstance(value, Mapping):
        raise rules.refuse(where, "a dict such as {'cores': 2}", value)
    for name, amount in value.items():
        rules.one_of(*NAMES)(where, name)
        rules.number(0, 1e9)(f"{where}: {name!r}", amount)
    return {name: float(amount) for name, amount in value.items()}
