"""A job as its simulation sees it, and what came of one run. Pure."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

from container.contract import rules
from container.contract.rules import option
from estimators.job.bounds import MAX_SECONDS
from estimators.job.spot_market import Interruption, SpotMarket, interruptions

_SECONDS = rules.seconds(0, MAX_SECONDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timings:
    """Durations of a job's phases, in seconds. Defaults: measured by ``python -m benchmarks elastic`` with processes.

    Attributes:
        start_s: From the request for a host to the start of its toolkit; on EC2, this takes minutes.
        import_s: The imports of a worker.
        rendezvous_s: From the imports of the first workers to the training of all; None: as ``resize_s``.
        look_s: Until workers notice that hosts join or leave. None: until the next commit, as in scripts that use
            Horovod's own ``state.commit()``.
        resize_s: From this moment to the training of the new membership.
        loss_s: From the loss of a worker to the next step of the others.
        commit_s: A commit.
        checkpoint_s: A checkpoint of a job that is not elastic, also after an interruption notice.
        restart_s: From the end of an attempt to the first step of the next attempt.
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
        """From the imports of the first workers to the training of all."""
        return self.resize_s if self.rendezvous_s is None else self.rendezvous_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job, as far as time goes.

    Attributes:
        records: How many it trains on, all epochs together.
        rates: Records in a second of one host, of two, and so on.
        workers_per_host: Its workers on each host.
        least: Hosts below which it waits.
        most: Hosts above which it does not grow, with as many of which it begins.
        every_s: Seconds between two commits, or checkpoints of a job that is not elastic.
        on_demand: Of its hosts, how many nobody takes away.
        timings: How long things take.
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
        """The names of those that it begins with."""
        return tuple(f"algo-{number}" for number in range(1, self.most + 1))

    @functools.cached_property
    def kept(self) -> frozenset[str]:
        """Those of them that nobody takes away."""
        return frozenset(self.hosts[: self.on_demand])

    def rate(self, hosts: int) -> float:
        """Records in a second of all workers of so many hosts."""
        return self.rates[hosts - 1]

    def uninterrupted_s(self) -> float:
        """Seconds of training on all hosts, without commits and interruptions."""
        return self.records / self.rate(self.most)


@dataclasses.dataclass
class RunOutcome:
    """What came of one run.

    Attributes:
        seconds: From the first request for a host to the end.
        completed: Whether it trained on all records.
        spot_s: Seconds of hosts that may be taken, all together.
        on_demand_s: Seconds of the others.
        interruptions: Notices.
        resizes: Memberships, or attempts, after the first.
        idle_s: Seconds in which nobody trained: starts, resizes, losses, waiting for hosts.
        commit_s: Seconds of commits.
        lost_s: Seconds of training that were lost and done again.
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
        """Count the time that hosts ran."""
        self.spot_s += spot * seconds
        self.on_demand_s += on_demand * seconds


@dataclasses.dataclass(frozen=True)
class Stretch:
    """A time in which the same workers train, commit by commit.

    Attributes:
        since: When it began, in seconds.
        rate: Records in a second.
        every_s: Seconds of training between two commits.
        commit_s: Seconds of one.
    """

    since: float
    rate: float
    every_s: float
    commit_s: float

    def committed(self, now: float) -> int:
        """How many commits are complete."""
        return math.floor((now - self.since) / (self.every_s + self.commit_s) + 1e-9)

    def trained_s(self, now: float) -> float:
        """Seconds of training, without commits."""
        count = self.committed(now)
        rest = now - self.since - count * (self.every_s + self.commit_s)
        return count * self.every_s + min(max(0.0, rest), self.every_s)

    def kept_s(self, now: float) -> float:
        """Seconds of training that a loss leaves."""
        return self.committed(now) * self.every_s

    def next_commit(self, now: float) -> float:
        """When the next commit is complete; now, if one is in this moment."""
        period = self.every_s + self.commit_s
        return max(now, self.since + math.ceil((now - self.since) / period - 1e-9) * period)

    def ends_at(self, records: float) -> float:
        """When as many records are trained on."""
        work_s = records / self.rate
        commits = max(0, math.ceil(work_s / self.every_s - 1e-9) - 1)
        return self.since + work_s + commits * self.commit_s


def spot_interruptions(market: SpotMarket, job: SimulatedJob, hosts: Sequence[str]) -> Iterator[Interruption]:
    """The market's interruptions of these hosts, less those that nobody takes away."""
    threatened = [host for host in hosts if host not in job.kept]
    return (item for item in interruptions(market, threatened) if item.host not in job.kept)
