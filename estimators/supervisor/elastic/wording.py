"""What is said of an elastic training that waits for workers. Pure."""

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
    """Says whom a training waits for, and for how long.

    Args:
        strategy: The job's.
        roster: Who there is.
    """

    def __init__(self, strategy: Elastic, roster: Roster) -> None:
        self._strategy = strategy
        self._roster = roster
        self._first_hosts = len(roster.hosts)
        #: The places that are named, where somebody names them.
        self.places: Places | None = None

    def late(self, start_timeout: float) -> str | None:
        """Who has not come up in time; None if all have."""
        if self.places is not None and not self.places.known:
            return f"{self.places.title} has listed no host within {start_timeout:g} s. The training waits for hosts."
        late = [host.name for host in self._roster.present_hosts if host.state is HostState.STARTING and not host.up]
        return f"{', '.join(late)} did not come up within {start_timeout:g} s." if late else None

    def too_few_left(self, there: int, limits: Limits) -> str:
        """A training waits for others."""
        needed = f"{limits.least} worker{'' if limits.least == 1 else 's'}"
        return (
            f"the training needs at least {needed}, but has only {there}. It waits for more workers, up to "
            f"{self._strategy.elastic_timeout:g} s.{self._missing(' Missing: {}.')}"
        )

    def too_few_first(self, there: int, limits: Limits) -> str:
        """The first workers are not all there, nor on their way."""
        text = (
            f"the training needs {limits.first} workers to begin ({self._first_is}), but has only {there}. It waits "
            f"for the other workers, up to {self._strategy.elastic_timeout:g} s."
        )
        if self.places is None or not self.places.decide:
            return text + self._missing(" Missing: {}.")
        title = self.places.title
        return f"{text} {title[0].upper()}{title[1:]} lists {', '.join(self.places.names) or 'no host'}."

    def another_attempt(self, awaited: list[str]) -> str:
        """Another attempt begins when hosts are back."""
        return (
            f"there were too few workers for {self._strategy.elastic_timeout:g} s (elastic_timeout). Another attempt "
            f"begins when {', '.join(awaited)} {'is' if len(awaited) == 1 else 'are'} back."
        )

    def timed_out(self, limits: Limits, failures: Mapping[str, Failure], *, has_met: bool) -> Failure:
        """The workers that are needed have not come within ``elastic_timeout``."""
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
        """What has set the number of the first workers."""
        if self._strategy.workers:
            return f"workers={self._strategy.workers}"
        return f"instance_count={self._first_hosts}"

    def _missing(self, text: str) -> str:
        """Whose workers are missing, put into a text; "" if that is nobody's."""
        names = [f"{host.name}{self._place_of(host.name)}" for host in self._roster.missing]
        return text.format(", ".join(names)) if names else ""

    def _place_of(self, host: str) -> str:
        if self.places is None:
            return ""
        if self.places.awaits(host):
            return f" (not listed by {self.places.title})"
        place = self.places.last_place_of(host)
        return f" ({place})" if place is not None else ""
