"""Store the state of one host of a job for :class:`estimators.backends.hosts.cluster.HostCluster`."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING

from container.contract.failures import Failure
from estimators.backends.hosts.platform import PreparationFailed
from estimators.backends.hosts.provider import Host, HostLost, HostProcess

if TYPE_CHECKING:
    from estimators.backends.hosts.cluster import HostCluster


class MemberPhase(enum.Enum):
    """The state of a host in an attempt."""

    IDLE = "idle"  # the host takes no part in the attempt: its training has ended, or its start was cancelled
    PREPARING = "preparing"
    JOINING = "joining"  # the host is being prepared for a job that already runs
    TRAINING = "training"  # the host's training process has not ended
    #: The job can no longer use the host through this member, for one of these reasons: the host is lost, the provider
    #: could not supply a host, the request for the host was withdrawn, or the host was released. This phase is final:
    #: another attempt uses a new member.
    LOST = "lost"


class ClusterMember:
    """One host of a job, with its platform and processes.

    Attributes:
        name: The name of the host.
        platform: The object that provides the host's inputs and saves the host's files.
        host: The acquired host. None before the host is acquired and after it is released. A lost host stays here until
            :meth:`release` is called.
        watch: The task that waits until the host is lost, and then reports the loss. None until the host is acquired.
        phase: The state of the host in the attempt.
        noticed: Whether the provider has announced that it will take the host away.
        toolkit: The training process of the host, or None until the process was started.
        finishing: The task that copies the host's checkpoints and outputs, once per attempt.
    """

    def __init__(self, cluster: HostCluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self.platform = cluster.platform()
        self.host: Host | None = None
        self.watch: asyncio.Task[None] | None = None
        self.phase = MemberPhase.IDLE
        self.noticed = False
        self.toolkit: HostProcess | None = None
        self.finishing: asyncio.Task[Failure | None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        """Return whether the host was lost, released, withdrawn or never supplied. See :attr:`MemberPhase.LOST`."""
        return self.phase is MemberPhase.LOST

    @property
    def trains(self) -> bool:
        """Return whether the host's training process is being started, or was started and has not ended yet."""
        return self.phase is MemberPhase.TRAINING

    @property
    def preparing(self) -> bool:
        """Return whether the host is being prepared."""
        return self.phase in (MemberPhase.PREPARING, MemberPhase.JOINING)

    @property
    def there(self) -> Host:
        """Return the acquired host.

        Raises:
            HostLost: the host is not acquired yet, or :attr:`lost` is true.
        """
        if self.host is None or self.lost:
            raise HostLost("it is gone")
        return self.host

    async def bring_saved(self) -> None:
        """Copy all saved files from the host. Do nothing if :attr:`lost` is true."""
        if not self.lost:
            await self.platform.bring_saved()

    async def end_attempt(self) -> None:
        """Copy all saved files from the host before another attempt begins. Do nothing if :attr:`lost` is true.

        No process may train on the host meanwhile.
        """
        if not self.lost:
            await self.platform.end_attempt(self.name)

    async def refresh_checkpoints(self) -> None:
        """Copy new checkpoints to the host: the checkpoints that were saved after the host was prepared.

        No rank may train while this coroutine runs.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._cluster.loop.start(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        if self.platform.shared:
            return
        try:
            # First stop the agent that copies the host's checkpoints to this machine. It would copy these checkpoints
            # back.
            await self.end_attempt()
            if self.trains and not self.lost:  # a host that is about to leave needs no checkpoints
                await self.platform.restore()
                self.platform.start_syncs()
        except HostLost:
            pass  # the host needs no checkpoints any more; the member's task `watch` reports a loss
        except PreparationFailed as error:
            self._cluster.fail(error.failure)

    def abort(self) -> None:
        """Kill the remaining processes of a host that trains, except the agents that copy saved files."""
        if self.host is not None and not self.lost and self.trains:
            self.host.abort(self.platform.syncing)

    async def finish(self) -> Failure | None:
        """Copy the host's checkpoints and outputs once per attempt. Do nothing if there is no host to copy from.

        Returns:
            The failure if some files could not be copied. None if all files were copied or nothing was done.
        """
        if self.host is None or self.lost or not self.platform.hosts:
            return None
        if self.finishing is None:
            self.finishing = self._cluster.loop.start(self.platform.collect())
        return await asyncio.shield(self.finishing)

    def release(self) -> None:
        """Close the connection to the host, give the host back to the provider, and set the phase to LOST.

        No loss and no end of the host is reported. Do nothing if no host is acquired.
        """
        if self.host is not None:
            host, self.host = self.host, None
            self.phase = MemberPhase.LOST
            if self.watch is not None:
                self.watch.cancel()
            host.close()
            self._cluster.provider.release(host)
