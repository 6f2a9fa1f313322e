"""Who there is for an elastic job, as told by what knows: a script, a list, a cluster's own table of nodes.

A :class:`MembershipSource` names places for hosts, in words of its own, and says when one is about to be taken. What
the job makes of that (which hosts it starts, lets go and replaces) is decided in one place for all sources.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from container.system.asyncio_loop import AsyncioLoop

#: Name -> how many workers fit there; None where the source does not know, and the job's own number holds.
Places = Mapping[str, int | None]


class MembershipListener(Protocol):
    """An elastic job, as a source speaks to it: in the supervisor's loop, once it was started."""

    def places(self, found: Places) -> None:
        """Take all places that there are now, the oldest first; those that are missing are gone."""

    def leaving(self, name: str, seconds: float) -> None:
        """Take note that a place, or a host by its own name, will be taken away in so many seconds.

        The place is used again when it has gone and come back.
        """

    def problem(self, text: str) -> None:
        """Show why the source cannot say it now; what it told last stays."""

    def hopeless(self, text: str) -> None:
        """Fail the job: the source has never said anything, and never will."""


class MembershipSource(Protocol):
    """Tells one attempt of a job which places there are.

    Attributes:
        decides: Whether the job has a host at every place, as far as it may grow, and lets one go when its place goes:
            the provider's ``locate`` says which place is which host's. Otherwise the places are what there is to ask
            for: the job has as many hosts as it was told to, replaces a lost one when a place is free, and no more
            can be added than there are places.
        title: What it is called in messages: "discovery", "the fleet".
    """

    decides: bool
    title: str

    def start(self, membership: MembershipListener) -> None:
        """Begin to tell: everything at first, then each change. It may tell before this returns."""

    def close(self) -> None:
        """Tell nothing any more; harmless if it was never started."""


class News:
    """Tells a membership what is new: places that differ from the last ones, each notice and each problem once.

    Args:
        membership: Who is told.
        hopeless_after: Seconds from now without any answer after which a problem is hopeless; None: never.
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
        """Whether there has been an answer, of places or of none."""
        return self._known is not None

    def places(self, found: Places) -> None:
        """See :meth:`MembershipListener.places`; an answer ends the problem that there was."""
        self._said = ""
        self._leaving &= set(found)
        if found != self._known:
            self._known = dict(found)
            self._membership.places(self._known)

    def leaving(self, name: str, seconds: float) -> None:
        """See :meth:`MembershipListener.leaving`; each place's is told once until that has gone."""
        if name not in self._leaving:
            self._leaving.add(name)
            self._membership.leaving(name, seconds)

    def problem(self, text: str) -> None:
        """See :meth:`MembershipListener.problem` and :meth:`MembershipListener.hopeless`."""
        if text != self._said:
            self._said = text
            self._membership.problem(text)
        if self._hopeless_after is None or self._known is not None:
            return
        if time.monotonic() - self._began >= self._hopeless_after:
            self._membership.hopeless(text)


class Located:
    """The places of a provider's hosts, which a source sets before or after the hosts are acquired."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self._set: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def locate(self, name: str, place: str) -> None:
        """Set the place of a host."""
        self._places[name] = place
        self._set[name].set()

    def get(self, name: str) -> str | None:
        """Return the place of a host; None if it has none."""
        return self._places.get(name)

    async def wait(self, name: str) -> str:
        """Wait until a host has a place, and return the place."""
        await self._set[name].wait()
        return self._places[name]

    def forget(self, name: str) -> None:
        """Drop the place of a host: the next one of this name gets another."""
        self._places.pop(name, None)
        self._set.pop(name, None)


class Watching(abc.ABC):
    """A source that one coroutine watches; see :class:`MembershipSource`.

    Args:
        loop: The supervisor's loop.
    """

    decides = False
    title: str

    def __init__(self, loop: AsyncioLoop) -> None:
        self._loop = loop
        self._watching: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def watch(self, membership: MembershipListener) -> None:
        """Tell what there is, and each change. It is cancelled when nobody wants to know any more."""

    def start(self, membership: MembershipListener) -> None:
        """See :class:`MembershipSource`."""
        self._watching = self._loop.start(self.watch(membership))

    def close(self) -> None:
        """See :class:`MembershipSource`."""
        if self._watching is not None:
            self._watching.cancel()


class PlaceList(Protocol):
    """Have a list of places, which is quick to read."""

    def places(self) -> Places:
        """Return the places.

        Raises:
            OSError: they cannot be read now.
            ValueError: likewise.
        """


class Polled(Watching):
    """Asks for a list of places every now and then.

    Args:
        loop: The supervisor's loop.
        listed: The list; what it raises is a problem, and it is asked again.
        title: See :class:`MembershipSource`.
        decides: Likewise.
        every: Seconds between two questions; None asks once.
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
        """Ask, and tell what is new."""
        news = News(membership)
        while True:
            try:
                news.places(self._listed.places())
            except (OSError, ValueError) as error:
                news.problem(str(error))
            if self._every is None:
                return
            await asyncio.sleep(self._every)
