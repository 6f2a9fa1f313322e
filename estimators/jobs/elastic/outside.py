"""Hosts that somebody outside names, and the job's own that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from container.contract.strategies import DISCOVERED_BY_CALLER, ElasticHorovod
from container.supervision.loop import Loop
from estimators.jobs.elastic import calling
from estimators.jobs.elastic.discovery import Discovery
from estimators.jobs.elastic.members import Host, HostState


class Outside:
    """Lets a host of the job come for each that is named, and leave when it is named no more.

    Args:
        loop: The supervisor's loop.
        folder: The job's record.
        strategy: The job's strategy, which has a discovery.
        hosts: The job's hosts, by name; those that it starts with stand for the first that are named.
        most: How many there may be.
        pipes: Whether a channel is in Pipe mode, where the readers of a host are as many as the strategy says.
        start: Starts a host with so many slots, and returns its name.
        leave: Lets a host leave.
        named: Called when the first hosts have been named: until then none of the job's is to begin.
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
        start: Callable[[int], str],
        leave: Callable[[Host], None],
        named: Callable[[], None],
        say: Callable[[str], None],
        hopeless: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._most = most
        self._readers = strategy.processes_per_host if pipes else None
        self._start = start
        self._leave = leave
        self._named = named
        self._say = say
        self._names: dict[str, str] = {}  # name outside -> host
        self._known = False
        assert strategy.discovery is not None
        by_caller = strategy.discovery == DISCOVERED_BY_CALLER
        path = folder / calling.FILE if by_caller else Path(strategy.discovery)
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

    def replaced(self, lost: str, by: str) -> None:
        """Another host stands for what a lost one stood for."""
        self._names.update({outside: by for outside, of in self._names.items() if of == lost})

    def close(self) -> None:
        """Look no more."""
        self._discovery.close()

    def _changed(self, found: Mapping[str, int]) -> None:
        for name in [name for name in self._names if name not in found]:
            host = self._hosts[self._names.pop(name)]
            if host.state in (HostState.STARTING, HostState.READY):
                self._leave(host)
        taken = set(self._names.values())
        unnamed = [host for host in self._hosts.values() if host.name not in taken and host.state is HostState.STARTING]
        for name, slots in found.items():
            if name in self._names:
                continue
            if unnamed:  # the first ones are those that the job starts with
                host = unnamed.pop(0)
                host.slots = self._usable(name, slots)
                self._names[name] = host.name
            elif sum(host.state is not HostState.GONE for host in self._hosts.values()) < self._most:
                self._names[name] = self._start(self._usable(name, slots))
        if found and not self._known:
            self._known = True
            for host in unnamed:
                named = f"{len(found)} of the {len(found) + len(unnamed)} hosts to start with"
                self._say(f"discovery names {named}: {host.name} leaves")
                self._leave(host)
            self._named()

    def _usable(self, name: str, slots: int) -> int:
        if self._readers is None or slots <= self._readers:
            return slots
        self._say(
            f"discovery: {name} has {slots} slots, of which {self._readers} are used: in Pipe mode "
            "processes_per_host says how many processes of a host read."
        )
        return self._readers
