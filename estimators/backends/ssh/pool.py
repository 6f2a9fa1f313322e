"""Which machines a job has: they are locked for it, and those that other jobs have are waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection

from container.system import locks
from estimators.backends.hosts.provider import HostUnavailable, ProvidedJob
from estimators.backends.ssh.machines import SshMachine, SshOptions, folder, parse
from estimators.job.errors import ConfigurationError
from estimators.job.request import TrainingJobSpec

#: How often it is looked whether machines are free that other jobs have, in seconds.
LOOK_EVERY_S = 1.0
#: How long a job that has some of its machines waits for the others.
_HELD_S = 600.0


class OthersHaveThem(HostUnavailable):
    """Tell that no machine will do now, but that other jobs have some."""


class MachinePool:
    """Choose machines for a job's hosts.

    Args:
        job: The job.
        options: What it asks of its machines.
    """

    def __init__(self, job: ProvidedJob, options: SshOptions) -> None:
        self._job = job
        self._options = options
        self._machines = list(options.machines())
        self._locks: dict[str, int] = {}  # machine -> the lock on one that a host has
        self._reserved: dict[str, int] = {}  # machine -> the lock on one that no host has yet
        self._losses: dict[str, int] = {}  # machine -> how often it was lost
        self._waiting: set[str] = set()  # the hosts that wait until there are machines for all of them
        self._reserving: asyncio.Task[None] | None = None
        self._waits_until = self._held_since = 0.0
        self._said = ""

    def places(self) -> dict[str, int | None]:
        """Read the list of machines again, and return those that will do, with their slots.

        Raises:
            ConfigurationError: a file of them is not there, or is wrong.
        """
        self._machines = list(self._options.machines())
        return {machine.name: machine.slots for machine in self._machines if fits(machine, self._job.spec)}

    def lost(self, machine: SshMachine) -> None:
        """Note that a machine was lost: another one is taken first from now on."""
        self._losses[machine.name] = self._losses.get(machine.name, 0) + 1

    def give_back(self, machine: SshMachine) -> None:
        """Let others have a machine."""
        if (lock := self._locks.pop(machine.name, None)) is not None:
            os.close(lock)

    def close(self) -> None:
        """Let others have all machines."""
        if self._reserving is not None:
            self._reserving.cancel()
        self._unreserve()
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()

    def take(self, host: str, tried: Collection[str], place: str | None) -> SshMachine:
        """Return a machine for a host, locked.

        Args:
            host: The host.
            tried: The machines that will not do.
            place: The machine that discovery has named for it; None: whichever is free.

        Raises:
            OthersHaveThem: other jobs have those that would do.
            HostUnavailable: there is none; with the reason, unless that is those that were tried.
        """
        self._waiting.discard(host)
        if place is not None:
            try:
                machines = [parse(place, "discovery")]
            except ConfigurationError as error:
                raise HostUnavailable(str(error)) from None
            known = {machine.name: machine for machine in self._machines}
            machines = [known.get(machine.name, machine) for machine in machines]
        else:
            machines = [machine for machine in self._machines if fits(machine, self._job.spec)]
            machines.sort(key=lambda machine: (machine.name not in self._reserved, self._losses.get(machine.name, 0)))
        busy = []
        try:
            for machine in machines:
                if machine.name in tried or machine.name in self._locks:
                    continue
                lock, owner = self._reserved.pop(machine.name, None), ""
                if lock is None:
                    lock, owner = self._lock(machine)
                if lock is not None:
                    if not self._locks:
                        self._held_since = _now()
                    self._locks[machine.name] = lock
                    return machine
                busy.append(f"{machine.name} ({owner})")
        except OSError as error:
            raise HostUnavailable(f"a lock for a machine could not be taken here: {error}") from None
        finally:
            if not self._waiting:  # all have chosen for whom machines are reserved
                self._unreserve()
        if busy:
            text = f"no machine is free: other jobs have {', '.join(busy)}. Wait for them, or add hosts"
            raise OthersHaveThem(text)
        raise HostUnavailable("" if tried else "no machine is free: this job has all of them. Add hosts")

    # --- waiting for machines that other jobs have ---

    def begin_to_wait(self) -> None:
        """Let the wait begin that the job asks for, unless it has begun."""
        if not self._waiting and not self._locks:
            self._waits_until = _now() + self._options.wait

    @property
    def waits(self) -> bool:
        """Return whether a host without a machine waits on: not for long where the job holds others from all jobs."""
        limit = min(self._waits_until, self._held_since + _HELD_S) if self._locks else self._waits_until
        return _now() < limit

    async def until_all_have_one(self, host: str, pause: float) -> None:
        """Wait until a machine is reserved for each host that waits; after a pause, if this one is the first."""
        self._waiting.add(host)
        if self._reserving is None:
            self._reserving = self._job.loop.start(self._reserve(pause))
        try:
            await asyncio.shield(self._reserving)
        except asyncio.CancelledError:
            self._waiting.discard(host)
            if not self._waiting:
                self._unreserve()
            raise

    async def _reserve(self, pause: float) -> None:
        """Lock as many machines as hosts wait; all or none, so that two jobs do not wait for each other."""
        await asyncio.sleep(pause)
        while (busy := self._lock_for_all()) and self.waits:
            self._unreserve()
            text = f"waiting for machines: other jobs have {', '.join(busy)}"
            if text != self._said:
                self._said = text
                self._job.tell(text)
            await asyncio.sleep(LOOK_EVERY_S)
        self._reserving = None

    def _lock_for_all(self) -> list[str]:
        """Lock machines for those that wait; return those that other jobs have, if there are too few."""
        busy = []
        with contextlib.suppress(OSError):  # why is said where each host tries
            for machine in self._machines:
                if len(self._reserved) < len(self._waiting) and fits(machine, self._job.spec):
                    lock, owner = self._lock(machine)
                    if lock is None:
                        busy.append(f"{machine.name} ({owner})")
                    else:
                        self._reserved[machine.name] = lock
            return busy if len(self._reserved) < len(self._waiting) else []
        return []

    def _unreserve(self) -> None:
        for lock in self._reserved.values():
            os.close(lock)
        self._reserved.clear()

    def _lock(self, machine: SshMachine) -> tuple[int | None, str]:
        """Lock a machine for a job of this user here; or return whose it is."""
        path = folder(self._options.fleet) / "locks" / machine.name.replace("/", "_")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = locks.take(path)
        if lock is None:
            return None, path.read_text(encoding="utf-8", errors="replace")[:200]
        os.ftruncate(lock, 0)
        os.pwrite(lock, self._job.spec.name.encode(), 0)
        return lock, ""


def fits(machine: SshMachine, spec: TrainingJobSpec) -> bool:
    """Return whether a machine takes a host of a job."""
    return machine.slots is None or machine.slots >= processes_of(spec)


def processes_of(spec: TrainingJobSpec) -> int:
    """Return how many processes of a job run on each host."""
    return spec.strategy.ranks_per_host if spec.strategy is not None else 1


def _now() -> float:
    return asyncio.get_running_loop().time()
