"""Define the properties of a simulated job, and the outcome of one simulated run."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import suggests_arguments
from container.contract.rules import option
from estimators.job.bounds import MAX_SECONDS
from estimators.job.spot_market import Interruption, SpotMarket, interruptions

_SECONDS = rules.seconds(0, MAX_SECONDS)


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class Timings:
    """The durations of a job's phases, in seconds.

    The defaults were measured with ``python -m benchmarks elastic``, with hosts that are processes of one machine.

    Attributes:
        start_s: The time from the request for a host to the start of the host's toolkit, the program that starts the
            workers. On EC2, this time is several minutes.
        import_s: The duration of a worker's imports.
        rendezvous_s: The time from the imports of the first workers until all workers train. With None, the value of
            ``resize_s`` is used.
        look_s: The time until workers notice that hosts are joining or leaving. With None, workers notice it at the
            next commit, as in scripts that call Horovod's ``state.commit()``.
        resize_s: The time from the moment at which workers notice a change until the new set of workers trains.
        loss_s: The time from the loss of a worker to the next step of the other workers.
        commit_s: The duration of a commit.
        checkpoint_s: The duration of a checkpoint of a job that is not elastic. An interruption notice also causes a
            checkpoint.
        restart_s: The time from the end of an attempt to the first step of the next attempt.
    """

    start_s: float = option(_SECONDS, 1.0)
    import_s: float = option(_SECONDS, 5.0)
    rendezvous_s: float | None = option(_SECONDS)
    look_s: float | None = option(rules.or_none(_SECONDS), 0.1)
    resize_s: float = option(_SECONDS, 0.33)
    loss_s: float = option(_SECONDS, 0.22)
    commit_s: float = option(_SECONDS, 0.05)
    checkpoint_s: float = option(_SECONDS, 1.0)
    restart_s: float = option(_SECONDS, 4.7)

    def __post_init__(self) -> None:
        rules.check(self)

    @property
    def first_s(self) -> float:
        """Return the time from the imports of the first workers until all workers train, in seconds."""
        return self.resize_s if self.rendezvous_s is None else self.rendezvous_s


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """The properties of a job that determine its duration.

    Attributes:
        records: The number of records to train on, over all epochs.
        rates: The training speeds with 1, 2, … hosts, in records per second.
        workers_per_host: The number of workers on each host.
        least: The minimum number of hosts. With fewer hosts, the job waits.
        most: The maximum number of hosts. The job starts with this number.
        every_s: The time between two commits, or between two checkpoints of a job that is not elastic, in seconds.
        on_demand: The number of hosts that are never interrupted.
        timings: The durations of the job's phases.
    """

    records: float
    rates: tuple[float, ...]
    workers_per_host: int
    least: int
    most: int
    every_s: float
    on_demand: int
    timings: Timings

    @functools.cached_property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts with which the job starts."""
        return tuple(f"algo-{number}" for number in range(1, self.most + 1))

    @functools.cached_property
    def kept(self) -> frozenset[str]:
        """Return the names of the hosts that are never interrupted. These are the first of :attr:`hosts`."""
        return frozenset(self.hosts[: self.on_demand])

    def rate(self, hosts: int) -> float:
        """Return the total speed of the workers of the given number of hosts, in records per second."""
        return self.rates[hosts - 1]

    def uninterrupted_s(self) -> float:
        """Return the duration of the training on all hosts, without commits and interruptions, in seconds."""
        return self.records / self.rate(self.most)


@dataclasses.dataclass
class RunOutcome:
    """The outcome of one run.

    Attributes:
        seconds: The time from the first request for a host to the end of the run, in seconds.
        completed: Whether the job trained on all records.
        spot_s: The sum of the running times of all spot hosts, in seconds.
        on_demand_s: The sum of the running times of all on-demand hosts, in seconds.
        interruptions: The number of interruption notices.
        resizes: The number of changes of the training hosts of an elastic job, or the number of restarts of any other
            job.
        idle_s: The time without training, in seconds: starts, changes of the hosts, and waiting for hosts.
        commit_s: The total duration of commits, in seconds.
        lost_s: The duration of training that was lost and repeated, in seconds.
    """

    seconds: float = 0.0
    completed: bool = False
    spot_s: float = 0.0
    on_demand_s: float = 0.0
    interruptions: int = 0
    resizes: int = 0
    idle_s: float = 0.0
    commit_s: float = 0.0
    lost_s: float = 0.0

    def bill(self, seconds: float, *, spot: int, on_demand: int) -> None:
        """Add the running time of hosts to ``spot_s`` and ``on_demand_s``.

        Args:
            seconds: The running time of each host, in seconds.
            spot: The number of spot hosts.
            on_demand: The number of on-demand hosts.
        """
        self.spot_s += spot * seconds
        self.on_demand_s += on_demand * seconds


@dataclass(frozen=True)
class Stretch:
    """A period in which the set of workers does not change. The workers train, and commit at regular intervals.

    Attributes:
        since: The start time, in seconds.
        rate: The training speed, in records per second.
        every_s: The duration of the training between two commits, in seconds.
        commit_s: The duration of a commit, in seconds.
    """

    since: float
    rate: float
    every_s: float
    commit_s: float

    def committed(self, now: float) -> int:
        """Return the number of commits that are complete at a given time."""
        return math.floor((now - self.since) / (self.every_s + self.commit_s) + 1e-9)

    def trained_s(self, now: float) -> float:
        """Return the duration of the training from the start to a given time, in seconds.

        The duration of commits is not included.
        """
        count = self.committed(now)
        rest = now - self.since - count * (self.every_s + self.commit_s)
        return count * self.every_s + min(max(0.0, rest), self.every_s)

    def kept_s(self, now: float) -> float:
        """Return the duration of the training up to the last commit before a given time, in seconds.

        The results of this part of the training are kept if a worker is lost at the given time.
        """
        return self.committed(now) * self.every_s

    def next_commit(self, now: float) -> float:
        """Return the time at which the next commit is complete. If a commit is complete at ``now``, return ``now``."""
        period = self.every_s + self.commit_s
        return max(now, self.since + math.ceil((now - self.since) / period - 1e-9) * period)

    def ends_at(self, records: float) -> float:
        """Return the time at which the given number of records has been trained on."""
        work_s = records / self.rate
        commits = max(0, math.ceil(work_s / self.every_s - 1e-9) - 1)
        return self.since + work_s + commits * self.commit_s


def spot_interruptions(market: SpotMarket, job: SimulatedJob, hosts: Sequence[str]) -> Iterator[Interruption]:
    """Return the market's interruptions of the given hosts in the order of their times.

    On-demand hosts are never interrupted.
    """
    threatened = [host for host in hosts if host not in job.kept]
    return (item for item in interruptions(market, threatened) if item.host not in job.kept)
