"""Hosts that somebody outside names, and the job's own that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from container.contract.strategies import DISCOVERED_BY_CALLER, ElasticHorovod
from container.system.loop import Loop
from estimators.records.record import DISCOVERED
from estimators.supervisor.elastic.discovery import Discovery
from estimators.supervisor.elastic.members import Host, HostState


class Outside:
    """Lets a host of the job come for each that is named, and leave when it is named no more.

    Args:
        loop: The supervisor's loop.
        folder: The job's record.
        strategy: The job's strategy, which has a discovery.
        hosts: The job's hosts, by name; those that it starts with stand for the first that are named.
        most: How many there may be.
        pipes: Whether a channel is in Pipe mode, where the readers of a host are as many as the strategy says.
        start: Starts a host with so many slots on the machine of a name outside, and returns its own name.
        locate: Says on which machine a host is to be that the job starts with.
        leave: Lets a host leave.
        stay: Has a host that is about to leave stay, and returns whether it does.
        named: Called when hosts have been named: until then none of the job's is to begin.
        say: Puts a line into the log.
        hopeless: Called with what is wrong when nobody has been able to say a host since the beginning.
    """

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        strategy: ElasticHorovod,
        hosts: Mapping[str, Host],
        *,
        most: int,
        pipes: bool,
        start: Callable[[int, str], str],
        locate: Callable[[str, str], None],
        leave: Callable[[Host], None],
        stay: Callable[[Host], bool],
        named: Callable[[], None],
        say: Callable[[str], None],
        hopeless: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._most = most
        self._readers = strategy.processes_per_host if pipes else None
        self._start = start
        self._locate = locate
        self._leave = leave
        self._stay = stay
        self._named = named
        self._say = say
        self._names: dict[str, str] = {}  # name outside -> host
        self._slots: dict[str, int] = {}  # name outside -> its slots as they were last named
        self._before: dict[str, str] = {}  # likewise, of those that are not named any more
        self._unnamed = list(hosts)  # of those that the job starts with
        self._known = False
        #: Whether there has been an answer, of hosts or of none.
        self.answered = False
        assert strategy.discovery is not None
        by_caller = strategy.discovery == DISCOVERED_BY_CALLER
        path = folder / DISCOVERED if by_caller else Path(strategy.discovery)
        self._discovery = Discovery(
            loop,
            path,
            default_slots=strategy.slots or strategy.processes_per_host,
            folder=folder,
            changed=self._changed,
            problem=lambda text: say(f"discovery: {text}"),
            hopeless=None if by_caller else hopeless,
        )

    @property
    def known(self) -> bool:
        """Whether anybody has ever been named."""
        return self._known

    def awaits(self, host: str) -> bool:
        """Whether a host has not been named yet, and is not to begin before."""
        return host in self._unnamed

    def place_of(self, host: str) -> str | None:
        """For whom a host stands now."""
        return next((name for name, of in self._names.items() if of == host), None)

    def name_of(self, host: str) -> str | None:
        """For whom a host stands, or stood last; None if it never did."""
        named = {of: name for name, of in {**self._before, **self._names}.items()}
        return named.get(host)

    @property
    def names(self) -> list[str]:
        """Those that are named now."""
        return list(self._names)

    def replaced(self, lost: str, by: str) -> None:
        """Another host stands for what a lost one stood for."""
        self._names.update({outside: by for outside, of in self._names.items() if of == lost})
        self._unnamed = [by if name == lost else name for name in self._unnamed]

    def begun(self) -> None:
        """The training has begun: who has not been named until now is not needed."""
        unnamed, self._unnamed = self._unnamed, []
        first = len(unnamed) + len(self._names)
        for name in unnamed:
            self._say(f"discovery names {len(self._names)} of the {first} hosts to start with: {name} leaves")
            self._leave(self._hosts[name])

    def close(self) -> None:
        """Look no more."""
        self._discovery.close()

    def _changed(self, found: Mapping[str, int]) -> None:
        for name in [name for name in self._names if name not in found]:
            host = self._hosts[self._names[name]]
            self._before[name] = self._names.pop(name)
            if host.state in (HostState.STARTING, HostState.READY):
                self._leave(host)
        for name, slots in found.items():
            if name in self._names:
                if slots != self._slots.get(name):
                    self._say(
                        f"discovery: {name} ({self._names[name]}) has {slots} slots now; it keeps those that it began "
                        f"with, {self._hosts[self._names[name]].slots}. To change them, let it go and come back."
                    )
                continue
            before = self._hosts.get(self._before.pop(name, ""))
            if before is not None and before.slots == self._usable(name, slots) and self._stay(before):
                self._names[name] = before.name
            elif self._unnamed:  # the first ones are those that the job starts with
                host = self._hosts[self._unnamed.pop(0)]
                host.slots = self._usable(name, slots)
                self._names[name] = host.name
                self._locate(host.name, name)
            elif sum(self._counts(host) for host in self._hosts.values()) < self._most:
                self._names[name] = self._start(self._usable(name, slots), name)
        self._slots = dict(found)
        self.answered = True
        self._known = self._known or bool(found)
        self._named()

    def _counts(self, host: Host) -> bool:
        return host.state in (HostState.STARTING, HostState.READY) and not host.spare

    def _usable(self, name: str, slots: int) -> int:
        if self._readers is None or slots <= self._readers:
            return slots
        self._say(
            f"discovery: {name} has {slots} slots, of which {self._readers} are used: in Pipe mode "
            "processes_per_host says how many processes of a host read."
        )
        return self._readers
