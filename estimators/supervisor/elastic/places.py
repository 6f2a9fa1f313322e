"""The places that a source names, and the hosts of an elastic job that stand for them.

There is no clock here, and nothing is started. What is decided is done by
:class:`estimators.supervisor.elastic.hosts.HostControl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from estimators.backends.hosts import membership
from estimators.supervisor.elastic.members import ElasticHost, HostState

if TYPE_CHECKING:
    from estimators.supervisor.elastic.hosts import HostControl


class Places:
    """Has a host of the job at each place; see :class:`estimators.backends.hosts.membership.MembershipListener`.

    Args:
        source: What names them. If it does not decide, hosts come and go without it, and it only bounds their number.
        hosts: The job's hosts, by name; those that it starts with stand for the first places that are named.
        moves: Does what is decided.
        most: How many hosts there may be.
        slots: The workers at a place that does not say how many.
        readers: In Pipe mode how many processes of a host read, and so how many workers it may have; else None.
    """

    def __init__(
        self,
        source: membership.MembershipSource,
        hosts: Mapping[str, ElasticHost],
        moves: HostControl,
        *,
        most: int,
        slots: int,
        readers: int | None,
    ) -> None:
        self._source = source
        self._hosts = hosts
        self._moves = moves
        self._most = most
        self._default = slots
        self._readers = readers
        self._of: dict[str, str] = {}  # place -> host
        self._slots: dict[str, int] = {}  # place -> its slots as they were last told
        self._before: dict[str, str] = {}  # place -> host, of those that are not named any more
        self._noticed: set[str] = set()  # places that will be taken away
        self._unnamed = list(hosts) if source.decides else []  # of those that the job starts with
        self._known = not source.decides
        #: The places that there are, where the source does not decide; None where it does, or has not answered.
        self.supply: tuple[str, ...] | None = None
        #: Whether there has been an answer, of places or of none.
        self.answered = False
        #: What the source is called.
        self.title = source.title

    @property
    def decide(self) -> bool:
        """Whether the job has a host at every place."""
        return self._source.decides

    @property
    def known(self) -> bool:
        """Whether any place has ever been named that is needed to begin."""
        return self._known

    @property
    def names(self) -> list[str]:
        """Those that have a host now."""
        return list(self._of)

    def start(self) -> None:
        """Hear of them."""
        self._source.start(self)

    def close(self) -> None:
        """Hear of them no more."""
        self._source.close()

    def awaits(self, host: str) -> bool:
        """Return whether a host has no place yet, and is not to begin before."""
        return host in self._unnamed

    def place_of(self, host: str) -> str | None:
        """Return the place that a host stands for now."""
        return next((place for place, of in self._of.items() if of == host), None)

    def last_place_of(self, host: str) -> str | None:
        """Return the place that a host stands for, or stood for last; None if it never did."""
        return {of: place for place, of in {**self._before, **self._of}.items()}.get(host)

    def may_replace(self, host: str) -> bool:
        """Return whether another host may come for one that was lost, as far as places go."""
        place = self.place_of(host)
        return not self.decide or (place is not None and place not in self._noticed)

    def replaced(self, lost: str, by: str) -> None:
        """Another host stands for what a lost one stood for."""
        self._of.update({place: by for place, of in self._of.items() if of == lost})
        self._unnamed = [by if name == lost else name for name in self._unnamed]

    def begun(self) -> None:
        """The training has begun: who has no place until now is not needed."""
        unnamed, self._unnamed = self._unnamed, []
        first = len(unnamed) + len(self._of)
        for name in unnamed:
            self._moves.say(f"{self.title} lists {len(self._of)} of the {first} initial hosts, so {name} leaves")
            self._moves.leave(self._hosts[name])

    # --- what the source tells ---

    def places(self, found: membership.Places) -> None:
        """See :class:`estimators.backends.hosts.membership.MembershipListener`."""
        self._noticed &= set(found)
        if self.decide:
            self._settle({place: self._default if slots is None else slots for place, slots in found.items()})
            self._known = self._known or bool(found)
        else:
            self.supply = tuple(found)
        self.answered = True
        self._moves.places_known()

    def leaving(self, name: str, seconds: float) -> None:
        """See :class:`estimators.backends.hosts.membership.MembershipListener`."""
        self._noticed.add(name)
        host = self._hosts.get(self._of.get(name, name))
        if host is not None and host.state in (HostState.STARTING, HostState.READY):
            self._moves.notice(host.name, seconds)

    def problem(self, text: str) -> None:
        """See :class:`estimators.backends.hosts.membership.MembershipListener`."""
        self._moves.say(f"{self.title}: {text}")

    def hopeless(self, text: str) -> None:
        """See :class:`estimators.backends.hosts.membership.MembershipListener`."""
        self._moves.no_places(text)

    def _settle(self, found: Mapping[str, int]) -> None:
        """Let hosts go whose places have gone, and have one at each that has come."""
        for place in [place for place in self._of if place not in found]:
            host = self._hosts[self._of[place]]
            self._before[place] = self._of.pop(place)
            if host.state in (HostState.STARTING, HostState.READY):
                self._moves.leave(host)
        for place, slots in found.items():
            if place in self._of:
                if slots != self._slots.get(place):
                    self._moves.say(
                        f"{self.title}: {place} ({self._of[place]}) has {slots} slots now, but the job keeps using "
                        f"{self._hosts[self._of[place]].slots}. To change this, remove the host and add it again."
                    )
                continue
            if place in self._noticed:
                continue
            before = self._hosts.get(self._before.pop(place, ""))
            if before is not None and before.slots == self._usable(place, slots) and self._moves.stay(before):
                self._of[place] = before.name
            elif self._unnamed:  # the first ones are those that the job starts with
                host = self._hosts[self._unnamed.pop(0)]
                host.slots = self._usable(place, slots)
                self._of[place] = host.name
                self._moves.locate(host.name, place)
            elif sum(self._counts(host) for host in self._hosts.values()) < self._most:
                self._of[place] = self._moves.start_host(self._usable(place, slots), place)
        self._slots = dict(found)

    def _counts(self, host: ElasticHost) -> bool:
        return host.state in (HostState.STARTING, HostState.READY) and not host.spare

    def _usable(self, place: str, slots: int) -> int:
        if self._readers is None or slots <= self._readers:
            return slots
        self._moves.say(
            f"{self.title}: {place} has {slots} slots, but the job uses only {self._readers}. In Pipe mode, "
            "processes_per_host sets how many processes of a host read."
        )
        return self._readers
