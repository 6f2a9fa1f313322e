"""Assign places to the hosts of an elastic job. A place is where a host can run, such as a machine that a source names.

The module uses no clock and starts no process. :class:`estimators.supervisor.elastic.hosts.HostControl` carries out the
decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from estimators.backends.hosts import membership
from estimators.supervisor.elastic.members import ElasticHost, HostState

if TYPE_CHECKING:
    from estimators.supervisor.elastic.hosts import HostControl


class Places:
    """The assignment of one host to each place. The class implements
    :class:`estimators.backends.hosts.membership.MembershipListener`.

    Args:
        source: The source that names the places. A source either decides which hosts the job has, or only limits their
            number.
        hosts: The job's hosts, by name. The initial hosts get the first places that are named.
        moves: The object that carries out the decisions.
        most: The largest number of hosts that the job may have.
        slots: The number of workers at a place if the source does not specify the number.
        readers: In Pipe mode, the number of processes of a host that can read the data. A host has at most this number
            of workers. None in other modes.
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
        self._slots: dict[str, int] = {}  # place -> its latest number of slots
        self._before: dict[str, str] = {}  # place -> host, for places that the source does not name any more
        self._noticed: set[str] = set()  # places with a preemption notice
        self._unnamed = list(hosts) if source.decides else []  # initial hosts without a place yet
        #: Whether the source has ever named a place. True for a source that does not decide the job's hosts.
        self.known = not source.decides
        #: The places that the source has named, if the source only limits the number of hosts. None if the source
        #: decides the job's hosts, or if it has not named places yet.
        self.supply: tuple[str, ...] | None = None
        #: Whether the source has sent a list of places, even an empty one.
        self.answered = False
        #: The source's name in messages.
        self.title = source.title

    @property
    def decide(self) -> bool:
        """Return whether the source decides which hosts the job has."""
        return self._source.decides

    @property
    def names(self) -> list[str]:
        """Return the places that currently have a host."""
        return list(self._of)

    def start(self) -> None:
        """Start the source."""
        self._source.start(self)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def awaits(self, host: str) -> bool:
        """Return whether a host must wait until a place is assigned to it."""
        return host in self._unnamed

    def place_of(self, host: str) -> str | None:
        """Return the place that is currently assigned to a host, or None."""
        return next((place for place, of in self._of.items() if of == host), None)

    def last_place_of(self, host: str) -> str | None:
        """Return the place of a host, or the last place if the host has none now. Return None if the host has never had
        a place.
        """
        return {of: place for place, of in {**self._before, **self._of}.items()}.get(host)

    def may_replace(self, host: str) -> bool:
        """Return whether a lost host may be replaced. If the source decides the job's hosts, the lost host's place must
        still be named and must have no preemption notice.
        """
        place = self.place_of(host)
        return not self.decide or (place is not None and place not in self._noticed)

    def replaced(self, lost: str, by: str) -> None:
        """Assign the place of a lost host to the lost host's replacement."""
        self._of.update({place: by for place, of in self._of.items() if of == lost})
        self._unnamed = [by if name == lost else name for name in self._unnamed]

    def begun(self) -> None:
        """Remove the initial hosts that have no place. Call the function when the training has begun without them."""
        unnamed, self._unnamed = self._unnamed, []
        first = len(unnamed) + len(self._of)
        for name in unnamed:
            self._moves.say(f"{self.title} lists {len(self._of)} of the {first} initial hosts, so {name} leaves")
            self._moves.leave(self._hosts[name])

    # --- calls of the source ---

    def places(self, found: membership.Places) -> None:
        """Apply the list of places that the source has sent. See
        :class:`estimators.backends.hosts.membership.MembershipListener`.
        """
        self._noticed &= set(found)
        if self.decide:
            self._settle({place: self._default if slots is None else slots for place, slots in found.items()})
            self.known = self.known or bool(found)
        else:
            self.supply = tuple(found)
        self.answered = True
        self._moves.places_known()

    def leaving(self, name: str, seconds: float) -> None:
        """Forward a preemption notice. See :class:`estimators.backends.hosts.membership.MembershipListener`."""
        self._noticed.add(name)
        host = self._hosts.get(self._of.get(name, name))
        if host is not None and host.state in (HostState.STARTING, HostState.READY):
            self._moves.notice(host.name, seconds)

    def problem(self, text: str) -> None:
        """Log a problem of the source. See :class:`estimators.backends.hosts.membership.MembershipListener`."""
        self._moves.say(f"{self.title}: {text}")

    def hopeless(self, text: str) -> None:
        """Handle the message that the source will name no place. See
        :class:`estimators.backends.hosts.membership.MembershipListener`.
        """
        self._moves.no_places(text)

    def _settle(self, found: Mapping[str, int]) -> None:
        """Remove the hosts whose places are no longer named. Assign a host to each new place, or start a host there."""
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
            elif self._unnamed:  # the initial hosts get the first places
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
