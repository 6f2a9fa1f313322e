"""One host of a job, as its cluster sees it."""

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
    """Where a host is in an attempt."""

    IDLE = "idle"  # it has no part in the attempt: it has ended, or its start was cancelled
    PREPARING = "preparing"
    JOINING = "joining"  # it is being prepared for a job that runs
    TRAINING = "training"  # the end of its training process is still to come
    LOST = "lost"  # there is no host any more


class ClusterMember:
    """One host of the job, as the cluster sees it.

    Attributes:
        name: Its name.
        platform: What serves it.
        host: The host, when it is there.
        watch: Waits for its loss, as long as it is there.
        phase: Where it is in the attempt.
        noticed: Whether the provider has announced that it will take the host away.
        toolkit: Its training process, when that was started.
        finishing: Brings what it has saved and its outputs, once an attempt.
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
        """Return whether it is gone."""
        return self.phase is MemberPhase.LOST

    @property
    def trains(self) -> bool:
        """Return whether the end of its training process is still to come."""
        return self.phase is MemberPhase.TRAINING

    @property
    def preparing(self) -> bool:
        """Return whether it is being prepared."""
        return self.phase in (MemberPhase.PREPARING, MemberPhase.JOINING)

    @property
    def there(self) -> Host:
        """The host.

        Raises:
            HostLost: it is gone.
        """
        if self.host is None or self.lost:
            raise HostLost("it is gone")
        return self.host

    async def bring_saved(self) -> None:
        """Have all that was saved brought."""
        if not self.lost:
            await self.platform.bring_saved()

    async def end_attempt(self) -> None:
        """Have all that was saved brought, before another attempt begins with it; nothing of the host's trains."""
        if not self.lost:
            await self.platform.end_attempt(self.name)

    async def refresh_checkpoints(self) -> None:
        """Bring what the job has saved since the host was prepared; nothing of it may train meanwhile."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._cluster.loop.start(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        if self.platform.shared:
            return
        try:
            # What brings its own checkpoints ends first: it would take those that come for the host's.
            await self.end_attempt()
            if self.trains and not self.lost:  # one that is about to leave needs nothing any more
                await self.platform.restore()
                self.platform.start_syncs()
        except HostLost:
            pass  # it is not waited for
        except PreparationFailed as error:
            self._cluster.fail(error.failure)

    def abort(self) -> None:
        """Kill what is left of it, but for what brings what was saved."""
        if self.host is not None and not self.lost and self.trains:
            self.host.abort(self.platform.syncing)

    async def finish(self) -> Failure | None:
        """Bring what it has saved and its outputs, once, and return why not all could be."""
        if self.host is None or self.lost or not self.platform.hosts:
            return None
        if self.finishing is None:
            self.finishing = self._cluster.loop.start(self.platform.collect())
        return await asyncio.shield(self.finishing)

    def release(self) -> None:
        """Let the host go."""
        if self.host is not None:
            host, self.host = self.host, None
            self.phase = MemberPhase.LOST
            if self.watch is not None:
                self.watch.cancel()
            host.close()
            self._cluster.provider.release(host)
