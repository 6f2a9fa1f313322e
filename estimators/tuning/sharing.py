"""Share a fleet of hosts among the running trials of a tuning job by adding hosts to jobs and removing hosts
from jobs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from estimators.client.resizing import resize, staying
from estimators.client.training_job import TrainingJob
from estimators.job.errors import ConfigurationError, JobUnreachableError
from estimators.tuning.fleet import Bounds, SharedFleetConfig, Shares, Standing, has_room, shares

if TYPE_CHECKING:
    from estimators.tuning.study import Running

#: The number of reassignments of hosts at even intervals until the deadline. The start or end of a trial causes an
#: additional reassignment.
_CHANGES = 30
#: The interval at which the trials' hosts are checked, in seconds.
_LOOK_S = 0.5


class Sharing:
    """The shared fleet of one tuning job.

    Args:
        config: The fleet.
        bounds: The limits for a trial's hosts.
        began: When the tuning job began, in seconds since the epoch.
        lasts_s: The number of seconds from the start of the tuning job to the deadline.

    Attributes:
        hosts: The number of hosts that each trial had at the last check, including hosts that are about to leave.
        trouble: The reason why hosts could not be moved at the last check, or None.
    """

    def __init__(self, config: SharedFleetConfig, bounds: Bounds, began: float, lasts_s: float) -> None:
        self._config = config
        self._bounds = bounds
        self._began = began
        self._lasts_s = lasts_s
        self._looked_at = self._shared_at = 0.0
        self.hosts: dict[int, int] = {}
        self.trouble: str | None = None
        self._shared_among: frozenset[int] = frozenset()
        self._wanted = Shares({}, ())

    @property
    def time_share(self) -> float:
        """Return the elapsed fraction of the time until the deadline."""
        return (time.time() - self._began) / self._lasts_s

    def has_room(self, running: Mapping[int, Running], values: Mapping[int, float | None]) -> bool:
        """Return whether the free hosts and the elapsed time allow another trial to start."""
        return has_room(self._standings(running, values), self._config, self._bounds, self.time_share)

    def share(self, running: Mapping[int, Running], values: Mapping[int, float | None]) -> tuple[int, ...]:
        """Move hosts between trials, so that better trials get more hosts. Do nothing if the last call was less than
        ``_LOOK_S`` seconds ago.

        Args:
            running: The running trials, by number.
            values: The last value of each trial, where higher is better.

        Returns:
            The numbers of the trials to stop.
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
        """Remove hosts from trials that should have fewer hosts. Give free hosts to trials that should have more."""
        free = self._config.hosts - sum(max(one.hosts, self._bounds.least) for one in standings)
        self.trouble = None
        for number, wanted in self._wanted.hosts.items():
            if number not in running or running[number].stopping is not None:
                continue
            job = TrainingJob(running[number].record)
            if not job.membership:
                continue  # the job is starting
            there = len(staying(job))
            size = wanted if wanted < there else there + min(wanted - there, max(0, free))
            if size == there:
                continue
            try:
                resize(job, size)
                free -= max(0, size - there)
            except (ConfigurationError, JobUnreachableError) as error:  # tried again at the next check
                self.trouble = f"training job {job.name}: {error}"

    def _standings(self, running: Iterable[int], values: Mapping[int, float | None]) -> list[Standing]:
        return [Standing(number, self.hosts.get(number, 0), values.get(number)) for number in running]
