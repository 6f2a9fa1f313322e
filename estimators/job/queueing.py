"""Decide which job of a queue on one machine runs next. All functions are pure.

Jobs start in the order of their priority. Jobs of equal priority start in the order of their arrival. Only the first
waiting job can start, as soon as the resources that it needs are free. Small jobs therefore cannot overtake a large job
and delay it. If a job needs more resources than the machine has, the job starts when no other job of the queue runs. A
running job that is preemptible is interrupted if a job of higher priority needs its resources.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract import rules
from container.contract.frozen import dataclass

#: The largest absolute value of a priority.
MOST_URGENT = 1000
#: The rule for the name of a queue.
check_name = rules.text(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", "not the name of a queue: use 1 to 32 letters, digits, '-' and '_'"
)


@dataclass(frozen=True, kw_only=True)
class ComputeResources:
    """The resources that a job needs, or that a machine has.

    Attributes:
        cores: The number of processor cores.
        gpus: The number of GPUs.
        memory_gb: The memory, in gigabytes (10**9 bytes).
    """

    cores: float = 0.0
    gpus: float = 0.0
    memory_gb: float = 0.0

    def fits(self, free: ComputeResources) -> bool:
        """Return whether a job that needs these resources can run with the free resources."""
        return all(getattr(self, name) <= getattr(free, name) + 1e-9 for name in NAMES)

    def minus(self, others: Iterable[ComputeResources]) -> ComputeResources:
        """Return the resources that remain free when jobs use some of them.

        Args:
            others: The resources that each of these jobs uses.
        """
        taken = list(others)
        return ComputeResources(
            **{name: getattr(self, name) - sum(getattr(one, name) for one in taken) for name in NAMES}
        )

    def __str__(self) -> str:
        """Return a text such as ``2 cores, 1 GPU, 4 GB``."""
        parts = [
            f"{amount:.3g} {unit}{'s' if amount != 1 and unit != 'GB' else ''}"
            for amount, unit in ((self.cores, "core"), (self.gpus, "GPU"), (self.memory_gb, "GB"))
            if amount
        ]
        return ", ".join(parts) or "nothing"


NAMES = tuple(field.name for field in dataclasses.fields(ComputeResources))


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job in a queue.

    Attributes:
        job: The job's name.
        priority: The priority. Jobs with a higher priority start first.
        since: The time at which the job entered the queue, in seconds since the epoch.
        needs: The resources that the job needs.
        running: Whether the job has started.
        preemptible: Whether the job may be interrupted for a job of higher priority.
    """

    job: str
    priority: int
    since: float
    needs: ComputeResources
    running: bool = False
    preemptible: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> QueuedJob:
        """Create a queued job from the result of ``dataclasses.asdict``.

        Raises:
            KeyError, TypeError, ValueError: the values do not describe a queued job.
        """
        return cls(**{**values, "needs": ComputeResources(**values["needs"])})


def order(entries: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Return the jobs that wait, in the order in which they start."""
    waiting = (entry for entry in entries if not entry.running)
    return sorted(waiting, key=lambda entry: (-entry.priority, entry.since, entry.job))


def placed(entries: Iterable[QueuedJob]) -> list[tuple[int | None, QueuedJob]]:
    """Return the running jobs, followed by the waiting jobs in the order in which they start.

    Each waiting job has its place in the queue, from 1. The place of a running job is None.
    """
    known = list(entries)
    running = sorted((entry for entry in known if entry.running), key=lambda entry: entry.since)
    return [*((None, entry) for entry in running), *enumerate(order(known), 1)]


def starts(entries: Iterable[QueuedJob], job: str, machine: ComputeResources) -> bool:
    """Return whether a waiting job may start now: it is the next job, and the resources that it needs are free."""
    known = list(entries)
    waiting = order(known)
    if not waiting or waiting[0].job != job:
        return False
    return _has_room(waiting[0], [entry for entry in known if entry.running], machine)


def makes_room(entries: Iterable[QueuedJob], job: str, machine: ComputeResources) -> bool:
    """Return whether a running job must be interrupted to free resources for the next job in the queue.

    Only as many jobs as necessary are interrupted. Jobs of the lowest priority are interrupted first. Of jobs with
    equal priority, the job that entered the queue last is interrupted first. If interruptions cannot free enough
    resources, no job is interrupted.

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


def _has_room(entry: QueuedJob, running: list[QueuedJob], machine: ComputeResources) -> bool:
    return not running or entry.needs.fits(machine.minus(one.needs for one in running))


def check_needs(where: str, value: Any) -> dict[str, float]:
    """Validate the value of ``RunOptions(needs=…)``, and return the resources that the job needs.

    Raises:
        ConfigurationError: the value is not a dict, or has an unknown name or an invalid amount.
    """
    if not isinstance(value, Mapping):
        raise rules.refuse(where, "a dict such as {'cores': 2}", value)
    for name, amount in value.items():
        rules.one_of(*NAMES)(where, name)
        rules.number(0, 1e9)(f"{where}: {name!r}", amount)
    return {name: float(amount) for name, amount in value.items()}
