"""Define the sources that tell an elastic job which machines exist for its hosts.

A source is, for example, a script, a list of machines or a cluster's node table. A :class:`MembershipSource` lists
machines under names of its own, and reports when a machine will be taken away. For all sources, the package
:mod:`estimators.supervisor.elastic` decides which hosts the job starts, releases and replaces.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from container.system.asyncio_loop import AsyncioLoop

#: The name of a machine -> the number of workers that fit on it. None if the source does not know the number. The job's
#: number of workers for each host is then used.
Places = Mapping[str, int | None]


class MembershipListener(Protocol):
    """The functions with which a membership source reports to an elastic job. The functions are called in the
    supervisor's event loop.
    """

    def places(self, found: Places) -> None:
        """Handle the complete list of machines. The oldest machine is the first one.

        A machine that is not in the list does not exist any more.
        """

    def leaving(self, name: str, seconds: float) -> None:
        """Handle the notice that a machine will be taken away after ``seconds`` seconds.

        The job does not use the machine again until it has disappeared from the list and is listed again.

        Args:
            name: The name of the machine, or the name of a host.
            seconds: The number of seconds until the machine is taken away.
        """

    def problem(self, text: str) -> None:
        """Show the user why the source cannot list the machines now. The last list stays valid."""

    def hopeless(self, text: str) -> None:
        """Fail the job, because the source has never listed machines and is not expected to do so."""


class MembershipSource(Protocol):
    """A source that tells one attempt of a job which machines exist for hosts.

    Attributes:
        decides: Whether the list of machines determines the number of hosts. If True, the job has a host on every
            machine, up to the job's maximum size. The job releases a host when the host's machine disappears from the
            list. The provider's ``locate`` assigns machines to hosts. If False, the job has the number of hosts that
            the user requested, but not more than there are machines. The job replaces a lost host when a machine is
            free.
        title: The name of the source in messages: "discovery", "the fleet".
    """

    decides: bool
    title: str

    def start(self, membership: MembershipListener) -> None:
        """Start to report to a listener: first all machines, then each change.

        The first report may be made before this method returns.
        """

    def close(self) -> None:
        """Stop reporting. The method may be called even if the source was never started."""


class News:
    """A filter between a source and a listener that passes on only news.

    The list of machines is passed on if it has changed. Each notice and each problem is passed on only once.

    Args:
        membership: The listener.
        hopeless_after: The job fails if a problem is reported after this number of seconds and the source has not
            listed machines until then. If None, a problem never fails the job.
    """

    def __init__(self, membership: MembershipListener, *, hopeless_after: float | None = None) -> None:
        self._membership = membership
        self._hopeless_after = hopeless_after
        self._began = time.monotonic()
        self._known: dict[str, int | None] | None = None
        self._leaving: set[str] = set()
        self._said = ""

    @property
    def has_answered(self) -> bool:
        """Return whether the source has listed the machines at least once. The list may be empty."""
        return self._known is not None

    def places(self, found: Places) -> None:
        """Report the machines if they have changed, and forget the last problem. See
        :meth:`MembershipListener.places`.
        """
        self._said = ""
        self._leaving &= set(found)
        if found != self._known:
            self._known = dict(found)
            self._membership.places(self._known)

    def leaving(self, name: str, seconds: float) -> None:
        """Report a notice about a machine. Later notices are ignored until the machine has disappeared.

        See :meth:`MembershipListener.leaving`.
        """
        if name not in self._leaving:
            self._leaving.add(name)
            self._membership.leaving(name, seconds)

    def problem(self, text: str) -> None:
        """Report a problem if it differs from the last problem. See :meth:`MembershipListener.problem`.

        If the source has not listed machines for ``hopeless_after`` seconds, fail the job. See
        :meth:`MembershipListener.hopeless`.
        """
        if text != self._said:
            self._said = text
            self._membership.problem(text)
        if self._hopeless_after is None or self._known is not None:
            return
        if time.monotonic() - self._began >= self._hopeless_after:
            self._membership.hopeless(text)


class Located:
    """The assignments of machines to hosts that a membership source decides.

    A machine may be assigned before or after its host is acquired.
    """

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self._set: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def locate(self, name: str, place: str) -> None:
        """Assign a machine to a host."""
        self._places[name] = place
        self._set[name].set()

    def get(self, name: str) -> str | None:
        """Return the machine that is assigned to a host. Return None if no machine is assigned."""
        return self._places.get(name)

    async def wait(self, name: str) -> str:
        """Wait until a machine is assigned to a host, and return the machine."""
        await self._set[name].wait()
        return self._places[name]

    def forget(self, name: str) -> None:
        """Remove the assignment of a machine to a host. The next host with this name needs a new assignment."""
        self._places.pop(name, None)
        self._set.pop(name, None)


class Watching(abc.ABC):
    """A base class of membership sources with one coroutine that watches for changes.

    See :class:`MembershipSource` for the interface.

    Args:
        loop: The supervisor's event loop.
    """

    decides = False
    title: str

    def __init__(self, loop: AsyncioLoop) -> None:
        self._loop = loop
        self._watching: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def watch(self, membership: MembershipListener) -> None:
        """Report the machines and each change, until the task is cancelled."""

    def start(self, membership: MembershipListener) -> None:
        """Start the coroutine that watches for changes. See :meth:`MembershipSource.start`."""
        self._watching = self._loop.start(self.watch(membership))

    def close(self) -> None:
        """Cancel the coroutine that watches for changes. See :meth:`MembershipSource.close`."""
        if self._watching is not None:
            self._watching.cancel()


class PlaceList(Protocol):
    """A list of machines that can be read so quickly that the event loop may wait for it."""

    def places(self) -> Places:
        """Return the machines.

        Raises:
            OSError: the list cannot be read now.
            ValueError: the content of the list is invalid now.
        """


class Polled(Watching):
    """A membership source that polls a list of machines.

    Args:
        loop: The supervisor's event loop.
        listed: The list. If reading the list raises an OSError or a ValueError, the error is reported as a problem, and
            the list is read again at the next poll.
        title: The source's name in messages, as for :class:`MembershipSource`.
        decides: Whether the list determines the number of hosts, as for :class:`MembershipSource`.
        every: The number of seconds between two polls. With None, the list is read only once.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        listed: PlaceList,
        *,
        title: str,
        decides: bool = False,
        every: float | None = 1.0,
    ) -> None:
        super().__init__(loop)
        self._listed = listed
        self._every = every
        self.title = title
        self.decides = decides

    async def watch(self, membership: MembershipListener) -> None:
        """Poll the list of machines, and report changes."""
        news = News(membership)
        while True:
            try:
                news.places(self._listed.places())
            except (OSError, ValueError) as error:
                news.problem(str(error))
            if self._every is None:
                return
            await asyncio.sleep(self._every)
