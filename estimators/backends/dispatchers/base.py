"""What a dispatcher is: a place where a job's supervisor runs that is not this machine.

The job's record is there. What is here is a copy (:mod:`estimators.records.replication`), which a process of this
machine keeps up to date while it can (:mod:`estimators.supervisor.dispatched`); the job does not need it. At the other
end is our program ``estimators.client.dispatching``, which every kind of dispatcher starts in its own way.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import dataclasses
import json
import zlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from container.contract.messages import Message
from container.system.asyncio_loop import AsyncioLoop

#: The module of the program at the other end; see there for its commands.
PROGRAM = "estimators.client.dispatching"
#: What a parcel is called where it is a file.
PARCEL = "parcel"
#: The longest message either way, in bytes: what a copy has of a job of many hosts is a long one.
LIMIT = 16 << 20
#: What an environment there has beside what training needs, under the names of the packages' folders.
PACKAGES = ("jinja2", "pandas", "psutil", "regex", "rich", "pip")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parcel:
    """What is brought to a dispatcher for a job: its record as it is now, and what the job needs of this machine.

    Attributes:
        name: The job.
        header: What the program there is told: request, options, and this machine's folder of records, whose name in
            them becomes the one there.
        files: Files and folders here, and what they are called in the record there.
    """

    name: str
    header: Mapping[str, Any]
    files: tuple[tuple[Path, str], ...]


class DispatchRefused(Exception):
    """The job cannot run at the dispatcher. The message is the reason."""


class Unreached(Exception):
    """The dispatcher is not reached, or no more. The message is the reason."""


class Dispatcher(abc.ABC):
    """Reaches one dispatcher, for one job.

    Args:
        loop: The loop of the process that keeps the copy.
        place: What ``RunOptions(dispatcher=…)`` says.
        options: ``RunOptions(dispatcher_options=…)``.

    Attributes:
        news: What is being prepared, in words.
    """

    kind: ClassVar[str]

    def __init__(self, loop: AsyncioLoop, place: str, options: Mapping[str, Any]) -> None:
        self.loop = loop
        self.place = place
        self.news: asyncio.Queue[str] = asyncio.Queue()

    @classmethod
    def pinned(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options that mean the same later, and in another process: what variables say now is in them."""
        return options

    @classmethod
    @abc.abstractmethod
    def check(cls, place: str, options: Mapping[str, Any]) -> None:
        """Refuse a place that cannot be, or options that this kind does not have; asks nobody.

        Raises:
            ConfigurationError: with the remedy.
        """

    @abc.abstractmethod
    async def prepare(self) -> None:
        """Have all there that the supervisor of a job needs.

        Raises:
            DispatchRefused: that cannot be.
        """

    @abc.abstractmethod
    async def submit(self, parcel: Parcel) -> None:
        """Start a job's supervisor there, which then needs nobody here any more; after :meth:`prepare`.

        A parcel that was taken before is not taken twice.

        Args:
            parcel: The job.

        Raises:
            DispatchRefused: the job cannot run there.
            Unreached: the dispatcher is not reached; whether it has the job is not known.
        """

    @abc.abstractmethod
    def follow(self, name: str, have: Mapping[str, Any]) -> AsyncGenerator[Message, None]:
        """Read what is new in a job's record there, until the job is over.

        Args:
            name: The job.
            have: What the copy has, of :attr:`estimators.records.replication.Replica.have`.

        Yields:
            The messages of :class:`estimators.records.replication.Changes`; at last ``end``, or ``missing`` if there is
            no such job.

        Raises:
            Unreached: the dispatcher is not reached, or no more.
        """

    @abc.abstractmethod
    async def ask(self, message: Message) -> Message:
        """Ask the supervisor of the job that is followed something, as at its own socket.

        Args:
            message: The request.

        Returns:
            The answer; one with ``ok`` false where nobody is reached.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the dispatcher; what runs there goes on."""


def packed(message: Mapping[str, Any]) -> str:
    """Return a message as an argument of a program."""
    return base64.b64encode(zlib.compress(json.dumps(message).encode())).decode()


def unpacked(argument: str) -> Message:
    """Return the message that an argument is."""
    return dict(json.loads(zlib.decompress(base64.b64decode(argument))))
