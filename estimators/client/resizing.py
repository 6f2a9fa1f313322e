"""Callbacks that resize an elastic job while ``fit()`` waits for it: experiments with a changing number of hosts."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from container.contract.wire import Event
from estimators.client.callbacks import Callback, Metric
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob


def next_size(size: int, *, step: int, least: int, most: int, generator: random.Random) -> int:
    """Return the next size of a random walk: at the maximum always down, at the minimum always up, else either alike.

    Args:
        size: Hosts now.
        step: Hosts that come or go at once; fewer where a limit is nearer.
        least: The minimum.
        most: The maximum.
        generator: For the choice between up and down.
    """
    if size >= most:
        up = False
    elif size <= least:
        up = True
    else:
        up = generator.random() < 0.5
    return min(most, size + step) if up else max(least, size - step)


class Hosts(Protocol):
    """What a callback resizes."""

    def size(self, job: TrainingJob) -> int:
        """Return the number of hosts that a change begins from."""

    def resize(self, job: TrainingJob, size: int) -> bool:
        """Have so many hosts; see :func:`resize`."""


class JobHosts:
    """The hosts of the job itself."""

    def size(self, job: TrainingJob) -> int:
        """See :class:`Hosts`."""
        return len(staying(job))

    def resize(self, job: TrainingJob, size: int) -> bool:
        """See :class:`Hosts`."""
        return resize(job, size)


class RandomResize(Callback):
    """Adds or removes hosts at regular intervals, at random.

    Args:
        step: Number of hosts that are added or removed at once.
        interval: Seconds between changes, counted from the first membership.
        min: Minimum number of hosts.
        max: Maximum number of hosts.
        seed: Seed of the random choices; the same seed makes the same choices.
        changes: Maximum number of changes; None: no limit.
        hosts: What to resize instead of the job, such as the nodes of a cluster that provides the hosts; None: the job.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(
        self,
        step: int = 1,
        interval: float = 60.0,
        min: int = 1,
        max: int = 4,
        seed: int = 0,
        changes: int | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        if step < 1 or not 1 <= min < max or interval <= 0:
            raise ConfigurationError(
                f"RandomResize(step={step}, interval={interval:g}, min={min}, max={max}): step must be at least 1, "
                "interval above 0, and 1 <= min < max."
            )
        self._step, self._interval, self._least, self._most = step, interval, min, max
        self._generator = random.Random(seed)
        self._left = changes
        self._hosts = hosts or JobHosts()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        #: The sizes that were asked for, in their order.
        self.sizes: list[int] = []

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Start when the job has its first membership."""
        if event.kind == "resized" and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(job,), daemon=True, name="fleetfit-resize")
            self._thread.start()

    def on_end(self, job: TrainingJob) -> None:
        """Stop when the job has ended."""
        self._over.set()

    def _run(self, job: TrainingJob) -> None:
        while (self._left is None or self._left > 0) and not self._over.wait(self._interval):
            size = next_size(
                self._hosts.size(job), step=self._step, least=self._least, most=self._most, generator=self._generator
            )
            try:
                if not self._hosts.resize(job, size):
                    return
            except ConfigurationError:
                continue  # hosts that leave are counted until they are gone: the next time will do
            self.sizes.append(size)
            if self._left is not None:
                self._left -= 1


class GrowWithEpochs(Callback):
    """Adds hosts after some epochs: ``GrowWithEpochs({30: 4, 60: 8})`` asks for 4 from epoch 30, for 8 from epoch 60.

    Args:
        sizes: Number of finished epochs -> number of hosts.
        hosts: What to resize; see :class:`RandomResize`.

    Raises:
        ConfigurationError: an epoch or a size is out of range.
    """

    def __init__(self, sizes: Mapping[int, int], hosts: Hosts | None = None) -> None:
        if not sizes or any(epoch < 0 or size < 1 for epoch, size in sizes.items()):
            raise ConfigurationError(
                f"GrowWithEpochs takes a dict that maps finished epochs to hosts, such as {{30: 4}}; got {sizes!r}."
            )
        self._left = sorted(sizes.items())
        self._hosts = hosts or JobHosts()

    def on_metric(self, job: TrainingJob, metric: Metric) -> None:
        """Check whether an epoch has finished."""
        if metric.name != "epoch":
            return
        due = [size for epoch, size in self._left if metric.value >= epoch]
        if due:
            self._left = [(epoch, size) for epoch, size in self._left if metric.value < epoch]
            self._hosts.resize(job, due[-1])


def resize(job: TrainingJob, size: int) -> bool:
    """Have an elastic job run on so many hosts: start some, or let the newest leave.

    Args:
        job: The job.
        size: How many.

    Returns:
        Whether the job took it; False for one that is about to end.

    Raises:
        ConfigurationError: the job may not have so many hosts now.
        JobUnreachableError: its supervisor does not answer.
    """
    from estimators.job.errors import JobUnreachableError

    try:
        names = staying(job)
        if size > len(names):
            job.add_hosts(size - len(names))
        for name in names[size:]:
            job.remove_host(name)
    except (JobUnreachableError, ConfigurationError):
        if _is_ending(job):
            return False
        raise
    return True


def staying(job: TrainingJob) -> list[str]:
    """Return the hosts of an elastic job that are there and do not leave, oldest first."""
    going = {str(host["name"]) for host in job.membership if host["state"] == "leaving"}
    return [name for name in job.hosts if name not in going]


def _is_ending(job: TrainingJob) -> bool:
    finished = (event.data.get("name") == "elastic_finished" for event in job.record.events("phase"))
    return job.status.is_terminal or any(finished)
