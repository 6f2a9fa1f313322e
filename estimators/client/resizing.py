"""Define callbacks that change the number of hosts of an elastic job during ``fit()``, for experiments."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from container.contract.names import suggests_arguments
from container.contract.strategies import Distribution, Elastic
from container.contract.wire import Event
from estimators.client.callbacks import Callback, Metric
from estimators.job.errors import ConfigurationError, JobUnreachableError
from estimators.job.request import TrainingJobSpec

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob


def next_size(size: int, *, step: int, least: int, most: int, generator: random.Random) -> int:
    """Return the next size of a random walk.

    At the maximum, the size decreases. At the minimum, the size increases. Between the limits, the size increases or
    decreases with equal probability.

    Args:
        size: The current number of hosts.
        step: The number of hosts that are added or removed at once. If a limit is closer than ``step``, the result is
            the limit.
        least: The minimum number of hosts.
        most: The maximum number of hosts.
        generator: The generator of random numbers.
    """
    if size >= most:
        up = False
    elif size <= least:
        up = True
    else:
        up = generator.random() < 0.5
    return min(most, size + step) if up else max(least, size - step)


class Hosts(Protocol):
    """The interface of an object whose number of hosts the callbacks of this module can change."""

    def size(self, job: TrainingJob) -> int:
        """Return the current number of hosts, without the hosts that are leaving."""

    def resize(self, job: TrainingJob, size: int) -> bool:
        """Change the number of hosts. Return False if the job is about to end, as :func:`resize` does."""


class _Resizing(Callback):
    """The base class of the callbacks that change the number of hosts.

    Args:
        hosts: The object to resize instead of the job, such as a cluster on whose nodes the hosts run.
        sizes: The numbers of hosts that the job must be able to have.
    """

    def __init__(self, hosts: Hosts | None, sizes: Iterable[int] = ()) -> None:
        self._hosts = hosts
        self._sizes = tuple(sizes)
        self._reset()

    def _reset(self) -> None:
        """Forget the previous job. The same callback may get several jobs, one after another."""
        self._is_checked = self._hosts is not None

    def _size(self, job: TrainingJob) -> int:
        return len(staying(job)) if self._hosts is None else self._hosts.size(job)

    def _resize(self, job: TrainingJob, size: int) -> bool:
        return resize(job, size) if self._hosts is None else self._hosts.resize(job, size)

    def on_end(self, job: TrainingJob) -> None:
        """Prepare for the next job."""
        self._reset()

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Check that the job can be resized. The check is made once, at the job's first event.

        Raises:
            ConfigurationError: the job is not elastic, or cannot have one of the sizes.
        """
        if not self._is_checked:
            self._is_checked = True
            spec = TrainingJobSpec.from_request(job.record.read_request())
            problem = resizing_problem(spec.strategy, spec.instance_count, self._sizes)
            if problem is not None:
                raise ConfigurationError(f"{type(self).__name__}: {problem}")


def resizing_problem(strategy: Distribution | None, hosts: int, sizes: Iterable[int]) -> str | None:
    """Return the reason why a job cannot have one of the given sizes. Return None if the job can have all sizes.

    Args:
        strategy: The job's strategy.
        hosts: The number of hosts with which the job starts.
        sizes: The numbers of hosts.
    """
    if not isinstance(strategy, Elastic):
        return "the job's hosts cannot change. Use the distribution ElasticHorovod or ElasticTorchDistributed."
    most = strategy.most_hosts(hosts)
    least = strategy.min_hosts if strategy.min_workers is None else 1
    for size in sizes:
        if not least <= size <= most:
            return f"the job cannot have {size} hosts, because its distribution allows {least} to {most} hosts."
    return None


@suggests_arguments
class RandomResize(_Resizing):
    """A callback that adds or removes hosts at regular intervals. Random numbers decide between adding and removing.

    Args:
        step: The number of hosts that are added or removed at once.
        interval: The time between changes, in seconds. The first interval starts when the job's first hosts have
            joined.
        min: The minimum number of hosts.
        max: The maximum number of hosts.
        seed: The seed of the random numbers. Equal seeds lead to equal decisions.
        changes: The maximum number of changes. With None, the number is not limited.
        hosts: The object to resize instead of the job, such as a cluster on whose nodes the hosts run.

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
        self._seed, self._changes = seed, changes
        self._over = threading.Event()
        #: The sizes that were requested, in order.
        self.sizes: list[int] = []
        super().__init__(hosts)

    def _reset(self) -> None:
        super()._reset()
        self._over.set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Start the random changes when the job reports that its first hosts have joined."""
        super().on_event(job, event)
        if event.kind == "resized" and self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(job, self._over), daemon=True, name="fleetfit-resize"
            )
            self._thread.start()

    def _run(self, job: TrainingJob, over: threading.Event) -> None:
        generator, left = random.Random(self._seed), self._changes
        while (left is None or left > 0) and not over.wait(self._interval):
            size = next_size(self._size(job), step=self._step, least=self._least, most=self._most, generator=generator)
            try:
                if not self._resize(job, size):
                    return
            except ConfigurationError:
                continue  # leaving hosts still count for the job's limits; try again after the next interval
            self.sizes.append(size)
            if left is not None:
                left -= 1


@suggests_arguments
class GrowWithEpochs(_Resizing):
    """A callback that changes the number of hosts after given epochs.

    With ``GrowWithEpochs({30: 4, 60: 8})``, the job has 4 hosts after epoch 30, and 8 hosts after epoch 60.

    Args:
        sizes: A mapping from numbers of finished epochs to numbers of hosts.
        hosts: The object to resize instead of the job, as for :class:`RandomResize`.

    Raises:
        ConfigurationError: an epoch or a size is out of range.
    """

    def __init__(self, sizes: Mapping[int, int], hosts: Hosts | None = None) -> None:
        if not sizes or any(epoch < 0 or size < 1 for epoch, size in sizes.items()):
            raise ConfigurationError(
                f"GrowWithEpochs takes a dict that maps finished epochs to hosts, such as {{30: 4}}; got {sizes!r}."
            )
        self._steps = sorted(sizes.items())
        super().__init__(hosts, sizes.values())

    def _reset(self) -> None:
        super()._reset()
        self._left = list(self._steps)

    def on_metric(self, job: TrainingJob, metric: Metric) -> None:
        """Resize the job when the metric ``epoch`` reaches one of the given numbers of epochs."""
        if metric.name != "epoch":
            return
        due = [size for epoch, size in self._left if metric.value >= epoch]
        if due:
            self._left = [(epoch, size) for epoch, size in self._left if metric.value < epoch]
            self._resize(job, due[-1])


def resize(job: TrainingJob, size: int) -> bool:
    """Change the number of hosts of an elastic job. Start new hosts, or remove the newest hosts.

    Args:
        job: The job.
        size: The new number of hosts.

    Returns:
        True if the job accepted the change. False if the job is about to end.

    Raises:
        ConfigurationError: the job cannot have this number of hosts now.
        JobUnreachableError: the job's supervisor does not answer.
    """
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
    """Return the current hosts of an elastic job, without the hosts that are leaving. The oldest host is first."""
    going = {str(host["name"]) for host in job.membership if host["state"] == "leaving"}
    return [name for name in job.hosts if name not in going]


def _is_ending(job: TrainingJob) -> bool:
    finished = (event.data.get("name") == "elastic_finished" for event in job.record.events("phase"))
    return job.status.is_terminal or any(finished)
