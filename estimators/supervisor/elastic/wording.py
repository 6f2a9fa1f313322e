"""Build the messages about an elastic training that waits for workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from container.contract.failures import Cause, Failure
from container.contract.strategies import Elastic
from estimators.supervisor.elastic.deciding import failed, last_failure
from estimators.supervisor.elastic.members import HostState, Roster
from estimators.supervisor.elastic.places import Places
from estimators.supervisor.elastic.policy import Limits


class Wording:
    """The messages about waiting for workers. The messages name the missing workers and the time limit.

    Args:
        strategy: The job's strategy.
        roster: The hosts and workers.
    """

    def __init__(self, strategy: Elastic, roster: Roster) -> None:
        self._strategy = strategy
        self._roster = roster
        self._first_hosts = len(roster.hosts)
        #: The places that a source has named. None without a source.
        self.places: Places | None = None

    def late(self, start_timeout: float) -> str | None:
        """Return a text that names the hosts that have not started in time. Return None if all hosts have started."""
        if self.places is not None and not self.places.known:
            return f"{self.places.title} has listed no host within {start_timeout:g} s. The training waits for hosts."
        late = [host.name for host in self._roster.present_hosts if host.state is HostState.STARTING and not host.up]
        return f"{', '.join(late)} did not come up within {start_timeout:g} s." if late else None

    def too_few_left(self, there: int, limits: Limits) -> str:
        """Return the message for a training that has only ``there`` workers left, and waits for more workers."""
        needed = f"{limits.least} worker{'' if limits.least == 1 else 's'}"
        return (
            f"the training needs at least {needed}, but has only {there}. It waits for more workers, up to "
            f"{self._strategy.elastic_timeout:g} s.{self._missing(' Missing: {}.')}"
        )

    def too_few_first(self, there: int, limits: Limits) -> str:
        """Return the message for a training that has only ``there`` workers, which are too few to begin."""
        text = (
            f"the training needs {limits.first} workers to begin ({self._first_is}), but has only {there}. It waits "
            f"for the other workers, up to {self._strategy.elastic_timeout:g} s."
        )
        if self.places is None or not self.places.decide:
            return text + self._missing(" Missing: {}.")
        title = self.places.title
        return f"{text} {title[0].upper()}{title[1:]} lists {', '.join(self.places.names) or 'no host'}."

    def another_attempt(self, awaited: list[str]) -> str:
        """Return the message for an attempt that ends because too few workers are left. Another attempt follows when
        the hosts in ``awaited`` have returned.
        """
        return (
            f"there were too few workers for {self._strategy.elastic_timeout:g} s (elastic_timeout). Another attempt "
            f"begins when {', '.join(awaited)} {'is' if len(awaited) == 1 else 'are'} back."
        )

    def timed_out(self, limits: Limits, failures: Mapping[str, Failure], *, has_met: bool) -> Failure:
        """Return the failure of a job in which too few workers have joined within ``elastic_timeout``.

        Args:
            limits: The sizes of the cluster.
            failures: The last failure of each worker, for a hint.
            has_met: Whether the workers have formed a cluster at least once.
        """
        strategy = self._strategy
        coming = self._roster.preparing
        least_is = f"min_workers={strategy.min_workers}" if strategy.min_workers else f"min_hosts={strategy.min_hosts}"
        wanted = f"of at least {limits.least} ({least_is})"
        if not has_met:
            wanted = f"of {limits.first} to begin with ({self._first_is})"
        late = "were not ready" if self._roster.restarts else "had not reached hvd.init()"
        text = (
            f"too few workers for {strategy.elastic_timeout:g} s (elastic_timeout): {len(self._roster.there)} {wanted}"
            f"{f'; {coming} more {late}' if coming else ''}{self._missing('; missing: {}')}"
        )
        return dataclasses.replace(failed(text, Cause.TIMEOUT), hints=last_failure(failures))

    @property
    def _first_is(self) -> str:
        """Return the name and value of the setting that determines with how many workers the training begins."""
        if self._strategy.workers:
            return f"workers={self._strategy.workers}"
        return f"instance_count={self._first_hosts}"

    def _missing(self, text: str) -> str:
        """Insert the names of the hosts whose workers are missing into a text. Return "" if no workers are missing.

        Args:
            text: The text, in which ``{}`` stands for the names.
        """
        names = [f"{host.name}{self._place_of(host.name)}" for host in self._roster.missing]
        return text.format(", ".join(names)) if names else ""

    def _place_of(self, host: str) -> str:
        if self.places is None:
            return ""
        if self.places.awaits(host):
            return f" (not listed by {self.places.title})"
        place = self.places.last_place_of(host)
        return f" ({place})" if place is not None else ""
