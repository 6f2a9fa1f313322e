"""Choose and lock machines for a job's hosts, and wait for machines that other jobs use.

A lock keeps other jobs with the same ``$FLEETFIT_HOME``, of any fleet, from using the same machine at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection

from container.system import locks
from estimators.backends.hosts.provider import HostUnavailable, ProvidedJob
from estimators.backends.ssh.machines import SshMachine, SshOptions, locks_folder, parse
from estimators.job.errors import ConfigurationError
from estimators.job.request import TrainingJobSpec

#: Seconds between two checks whether machines that other jobs use have become free.
LOOK_EVERY_S = 1.0
#: Seconds for which a job that has already locked some of its machines waits for the remaining machines.
_HELD_S = 600.0


class OthersHaveThem(HostUnavailable):
    """Raised if no suitable machine is free now, but other jobs use suitable machines."""


class MachinePool:
    """The machines from which a job's hosts are supplied. A machine is locked when it is chosen for a host.

    Args:
        job: The job, with the functions through which the provider reports to the supervisor.
        options: The job's ssh options.
    """

    def __init__(self, job: ProvidedJob, options: SshOptions) -> None:
        self._job = job
        self._options = options
        self._machines = list(options.machines())
        self._locks: dict[str, int] = {}  # machine that a host of the job uses -> the machine's lock
        self._reserved: dict[str, int] = {}  # machine that is reserved for a waiting host -> the machine's lock
        self._losses: dict[str, int] = {}  # machine -> how often it was lost
        self._waiting: set[str] = set()  # hosts that wait until machines are reserved for all of them
        self._reserving: asyncio.Task[None] | None = None
        self._waits_until = self._held_since = 0.0
        self._said = ""

    def places(self) -> dict[str, int | None]:
        """Read the list of machines again. Return the machines that have enough slots for a host: name -> slots.

        Raises:
            ConfigurationError: a host file does not exist, or is invalid.
        """
        self._machines = list(self._options.machines())
        return {machine.name: machine.slots for machine in self._machines if fits(machine, self._job.spec)}

    def lost(self, machine: SshMachine) -> None:
        """Record that a machine was lost, so that machines with fewer losses are preferred from now on."""
        self._losses[machine.name] = self._losses.get(machine.name, 0) + 1

    def give_back(self, machine: SshMachine) -> None:
        """Unlock a machine."""
        if (lock := self._locks.pop(machine.name, None)) is not None:
            os.close(lock)

    def close(self) -> None:
        """Unlock all machines."""
        if self._reserving is not None:
            self._reserving.cancel()
        self._unreserve()
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()

    def take(self, host: str, tried: Collection[str], place: str | None) -> SshMachine:
        """Lock a machine for a host, and return the machine.

        Args:
            host: The name of the host.
            tried: The names of the machines that were tried and cannot be used.
            place: The name of the machine that discovery has assigned to the host. If None, any free machine is locked.

        Raises:
            OthersHaveThem: other jobs use the suitable machines.
            HostUnavailable: no suitable machine exists. The message is the reason. If all machines were tried, the
                message is empty.
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
            if not self._waiting:  # all waiting hosts have chosen a machine
                self._unreserve()
        if busy:
            text = f"no machine is free: other jobs have {', '.join(busy)}. Wait for them, or add hosts"
            raise OthersHaveThem(text)
        raise HostUnavailable("" if tried else "no machine is free: this job has all of them. Add hosts")

    # --- waiting for machines that other jobs use ---

    def begin_to_wait(self) -> None:
        """Start the waiting time of the option ``wait``. Do nothing if the job is already waiting or has machines."""
        if not self._waiting and not self._locks:
            self._waits_until = _now() + self._options.wait

    @property
    def waits(self) -> bool:
        """Return whether a host without a machine should continue to wait.

        If the job has already locked other machines, it waits at most ten minutes, so that these machines do not stay
        unused.
        """
        limit = min(self._waits_until, self._held_since + _HELD_S) if self._locks else self._waits_until
        return _now() < limit

    async def until_all_have_one(self, host: str, pause: float) -> None:
        """Wait until a machine is reserved for each waiting host, or until the waiting time is over.

        Args:
            host: The name of the host that waits.
            pause: The number of seconds before the first attempt. If several hosts wait, the first host's value is
                used.
        """
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
        """Lock a machine for each waiting host. Give up when the waiting time is over.

        Either all waiting hosts get a machine or none does. Otherwise, two jobs could wait for each other's machines
        forever.
        """
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
        """Try once to lock a machine for each waiting host.

        Returns:
            The machines that other jobs use if too few machines are free. Otherwise, an empty list.
        """
        busy = []
        with contextlib.suppress(OSError):  # take() raises the error again for each host
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
        """Lock a machine against other jobs with the same ``$FLEETFIT_HOME``.

        Returns:
            The lock and "". If another job uses the machine, None and the name of that job.
        """
        path = locks_folder() / machine.name.replace("/", "_")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = locks.take(path)
        if lock is None:
            return None, path.read_text(encoding="utf-8", errors="replace")[:200]
        os.ftruncate(lock, 0)
        os.pwrite(lock, self._job.spec.name.encode(), 0)
        return lock, ""


def fits(machine: SshMachine, spec: TrainingJobSpec) -> bool:
    """Return whether a machine has enough slots for a host of the job."""
    return machine.slots is None or machine.slots >= spec.ranks_per_host


def _now() -> float:
    return asyncio.get_running_loop().time()
