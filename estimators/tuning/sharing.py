"""Shares a fleet among the trials of a study while they run: asks their jobs to grow and to shrink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from estimators.client.resizing import resize, staying
from estimators.client.training_job import TrainingJob
from estimators.job.errors import ConfigurationError, JobUnreachableError
from estimators.tuning.fleet import Bounds, SharedFleetConfig, Shares, Standing, has_room, shares

if TYPE_CHECKING:
    from estimators.tuning.study import Running

#: Hosts change their trials so many times until the deadline at most, but for trials that begin or end.
_CHANGES = 30
#: From one look at the trials' hosts to the next, in seconds.
_LOOK_S = 0.5


class Sharing:
    """The fleet of one study.

    Args:
        config: The fleet.
        bounds: How many hosts a trial has.
        began: When the study began, in seconds since the epoch.
        lasts_s: Seconds from then to the deadline.
        tell: Told why hosts could not be moved; None where they could.
    """

    def __init__(
        self,
        config: SharedFleetConfig,
        bounds: Bounds,
        began: float,
        lasts_s: float,
        tell: Callable[[str | None], None],
    ) -> None:
        self._config = config
        self._bounds = bounds
        self._began = began
        self._lasts_s = lasts_s
        self._tell = tell
        self._looked_at = self._shared_at = 0.0
        #: How many hosts each trial has, those that are about to leave it among them, as of the last look.
        self.hosts: dict[int, int] = {}
        self._shared_among: frozenset[int] = frozenset()
        self._wanted = Shares({}, ())

    @property
    def time_share(self) -> float:
        """The share of the time that is over."""
        return (time.time() - self._began) / self._lasts_s

    def has_room(self, running: Mapping[int, Running], values: Mapping[int, float | None]) -> bool:
        """Return whether another trial may begin."""
        return has_room(self._standings(running, values), self._config, self._bounds, self.time_share)

    def share(self, running: Mapping[int, Running], values: Mapping[int, float | None]) -> tuple[int, ...]:
        """Move hosts to where they are wanted; returns the trials that are to be stopped.

        Args:
            running: The trials that run, by number.
            values: The last value of each, higher being better.
        """
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return ()
        self._looked_at = now
        self.hosts = {number: len(TrainingJob(one.record).hosts) for number, one in running.items()}
        standings = self._standings(running, values)
        among = frozenset(running)
        if among != self._shared_among or now - self._shared_at >= self._lasts_s / _CHANGES:
            self._wanted = shares(standings, self._config, self._bounds, self.time_share)
            self._shared_at, self._shared_among = now, among
        self._move(running, standings)
        return self._wanted.stopped

    def _move(self, running: Mapping[int, Running], standings: list[Standing]) -> None:
        """Have hosts leave where there are too many; bring them where they lack, as far as others have left."""
        free = self._config.hosts - sum(max(one.hosts, self._bounds.least) for one in standings)
        trouble: str | None = None
        for number, wanted in self._wanted.hosts.items():
            if number not in running or running[number].stopping is not None:
                continue
            job = TrainingJob(running[number].record)
            if not job.membership:
                continue  # it is starting
            there = len(staying(job))
            size = wanted if wanted < there else there + min(wanted - there, max(0, free))
            if size == there:
                continue
            try:
                resize(job, size)
                free -= max(0, size - there)
            except (ConfigurationError, JobUnreachableError) as error:  # it is tried again
                trouble = f"training job {job.name}: {error}"
        self._tell(trouble)

    def _standings(self, running: Iterable[int], values: Mapping[int, float | None]) -> list[Standing]:
        return [Standing(number, self.hosts.get(number, 0), values.get(number)) for number in running]
