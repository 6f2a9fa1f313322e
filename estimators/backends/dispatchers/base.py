"""Define the interface of dispatchers. A dispatcher runs a job's supervisor on a machine other than the caller's.

The job's record is on the dispatcher's machine. A process on this machine keeps a copy of the record up to date
(:mod:`estimators.records.replication`, :mod:`estimators.supervisor.dispatched`). If this process ends, the job
continues. Each kind of dispatcher has its own way to start our program ``estimators.client.dispatching`` on the
dispatcher's machine.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import json
import zlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from container.contract.frozen import dataclass
from container.contract.messages import Message
from container.system.asyncio_loop import AsyncioLoop

#: The module of our program on the dispatcher's machine. The module's docstring lists the program's commands.
PROGRAM = "estimators.client.dispatching"
#: The name of a parcel if it is sent as a file.
PARCEL = "parcel"
#: The longest message in each direction, in bytes. The description of the copy of a record is long if the job has many
#: hosts.
LIMIT = 16 << 20
#: The packages that the supervisor needs in an environment on the dispatcher's machine, besides those for training. The
#: names are those of the packages' folders.
PACKAGES = ("jinja2", "pandas", "psutil", "regex", "rich", "pip")


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """The data that this machine sends to a dispatcher to start a job there: the job's request and options, and the
    files that the job needs.

    Attributes:
        name: The job's name.
        header: The request, the options, and the path of this machine's folder of records. Our program on the
            dispatcher's machine replaces this path by the path of the folder of records there.
        files: The files and folders on this machine, each with its name in the dispatcher's record.
    """

    name: str
    header: Mapping[str, Any]
    files: tuple[tuple[Path, str], ...]


class DispatchRefused(Exception):
    """Raised if the job cannot be started by the dispatcher. The message contains the reason."""


class Unreached(Exception):
    """Raised if the dispatcher cannot be reached, or the connection was lost. The message contains the reason."""


class Dispatcher(abc.ABC):
    """A connection to a dispatcher, for one job.

    Args:
        loop: The event loop of the process that copies the job's record to this machine.
        place: The value of ``RunOptions(dispatcher=…)``.
        options: The value of ``RunOptions(dispatcher_options=…)``.

    Attributes:
        news: Progress messages of :meth:`prepare` and :meth:`submit` for the user.
    """

    kind: ClassVar[str]

    def __init__(self, loop: AsyncioLoop, place: str, options: Mapping[str, Any]) -> None:
        self.loop = loop
        self.place = place
        self.news: asyncio.Queue[str] = asyncio.Queue()

    @classmethod
    def pinned(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options, completed with the values that this process's environment variables set.

        Another process that uses the options later may have other environment variables.
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
        """Prepare the dispatcher's machine for the job's supervisor, for example by creating a Python environment.

        Raises:
            DispatchRefused: the preparation failed. The message gives the reason.
        """

    @abc.abstractmethod
    async def submit(self, parcel: Parcel) -> None:
        """Send the job to the dispatcher, and start the job's supervisor there. :meth:`prepare` must have returned
        before.

        The supervisor continues to run when this process ends.

        If the dispatcher already has the parcel, submitting it again has no effect.

        Args:
            parcel: The job.

        Raises:
            DispatchRefused: the job cannot run at the dispatcher.
            Unreached: the dispatcher cannot be reached, or the connection was lost. The dispatcher may have received
                the job.
        """

    @abc.abstractmethod
    def follow(self, name: str, have: Mapping[str, Any]) -> AsyncGenerator[Message, None]:
        """Yield the changes of the job's record at the dispatcher until the job has ended.

        Args:
            name: The job.
            have: A description of this machine's copy of the record, from
                :attr:`estimators.records.replication.Replica.have`.

        Yields:
            The messages of :class:`estimators.records.replication.Changes`. The last message is ``end``. If the
            dispatcher does not have the job, the last message is ``missing``.

        Raises:
            Unreached: the dispatcher cannot be reached, or the connection was lost.
        """

    @abc.abstractmethod
    async def ask(self, message: Message) -> Message:
        """Send a request to the job's supervisor, while :meth:`follow` follows the job.

        The request is the same as a request to the socket of a local supervisor.

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
