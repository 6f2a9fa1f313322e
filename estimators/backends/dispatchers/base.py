"""Define the interface of dispatchers. A dispatcher runs a job's supervisor on another machine.

The job's record is on the dispatcher's machine. A process on this machine copies the record's changes to this machine
(:mod:`estimators.records.replication`, :mod:`estimators.supervisor.dispatched`). The job does not depend on that
process. Each kind of dispatcher has its own way to start our program ``estimators.client.dispatching`` on its machine.
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
#: The name of a parcel that is a file.
PARCEL = "parcel"
#: The longest message in each direction, in bytes: the state of the copy of a job with many hosts is long.
LIMIT = 16 << 20
#: Packages of an environment there in addition to those for training, by their folders' names.
PACKAGES = ("jinja2", "pandas", "psutil", "regex", "rich", "pip")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parcel:
    """The data of a job that is sent to a dispatcher: the job's current record, and the files of this machine that the
    job needs.

    Attributes:
        name: The job's name.
        header: The request, the options, and the path of this machine's folder of records. The program at the
            dispatcher replaces this path by the path of the dispatcher's folder of records.
        files: The files and folders on this machine, each with its name in the dispatcher's record.
    """

    name: str
    header: Mapping[str, Any]
    files: tuple[tuple[Path, str], ...]


class DispatchRefused(Exception):
    """Raised if the job cannot run at the dispatcher. The message contains the reason."""


class Unreached(Exception):
    """Raised if the dispatcher cannot be reached, or the connection was lost. The message contains the reason."""


class Dispatcher(abc.ABC):
    """A connection to a dispatcher, for one job.

    Args:
        loop: The loop of the process that keeps the copy.
        place: The value of ``RunOptions(dispatcher=…)``.
        options: ``RunOptions(dispatcher_options=…)``.

    Attributes:
        news: Progress messages about what is being prepared. They are shown until :meth:`submit` returns.
    """

    kind: ClassVar[str]

    def __init__(self, loop: AsyncioLoop, place: str, options: Mapping[str, Any]) -> None:
        self.loop = loop
        self.place = place
        self.news: asyncio.Queue[str] = asyncio.Queue()

    @classmethod
    def pinned(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with environment variables resolved, so that their meaning is the same later and in
        another process.
        """
        return options

    @classmethod
    @abc.abstractmethod
    def check(cls, place: str, options: Mapping[str, Any]) -> None:
        """Refuse an invalid dispatcher name or unknown options, without contacting the dispatcher.

        Raises:
            ConfigurationError: the name or an option is invalid. The message contains the remedy.
        """

    @abc.abstractmethod
    async def prepare(self) -> None:
        """Prepare everything at the dispatcher that the job's supervisor needs.

        Raises:
            DispatchRefused: the preparation failed. The message gives the reason.
        """

    @abc.abstractmethod
    async def submit(self, parcel: Parcel) -> None:
        """Start the job's supervisor at the dispatcher, after :meth:`prepare`. The supervisor does not depend on this
        process.

        If a parcel was accepted before, a second submission of this parcel has no effect.

        Args:
            parcel: The job.

        Raises:
            DispatchRefused: the job cannot run at the dispatcher.
            Unreached: the dispatcher cannot be reached. The dispatcher may nevertheless have the job.
        """

    @abc.abstractmethod
    def follow(self, name: str, have: Mapping[str, Any]) -> AsyncGenerator[Message, None]:
        """Yield the changes of the job's record at the dispatcher until the job has ended.

        Args:
            name: The job.
            have: The state of the copy, from :attr:`estimators.records.replication.Replica.have`.

        Yields:
            The messages of :class:`estimators.records.replication.Changes`. The last message is ``end``. If the
            dispatcher does not have the job, the last message is ``missing``.

        Raises:
            Unreached: the dispatcher cannot be reached, or the connection was lost.
        """

    @abc.abstractmethod
    async def ask(self, message: Message) -> Message:
        """Send a request to the supervisor of the followed job, in the same form as to a local supervisor's socket.

        Args:
            message: The request.

        Returns:
            The supervisor's answer. If the supervisor cannot be reached, ``ok`` is false in the answer.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection. The job at the dispatcher continues to run."""


def packed(message: Mapping[str, Any]) -> str:
    """Encode a message as a command-line argument."""
    return base64.b64encode(zlib.compress(json.dumps(message).encode())).decode()


def unpacked(argument: str) -> Message:
    """Decode a message from a command-line argument."""
    return dict(json.loads(zlib.decompress(base64.b64decode(argument))))
