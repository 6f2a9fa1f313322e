"""Connect a job's supervisor to its clients: any process of the user, and the caller that waits for the job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.messages import Message
from container.contract.names import unknown
from container.system.asyncio_loop import AsyncioLoop
from estimators.supervisor.events import PlainEvent, StopAsked
from estimators.supervisor.ipc_server import Attachment, ControlSocket

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor


class Clients:
    """The clients of one job.

    Args:
        loop: The supervisor's event loop.
        supervisor: The supervisor, which receives the requests.
    """

    def __init__(self, loop: AsyncioLoop, supervisor: Supervisor) -> None:
        self._loop = loop
        self._supervisor = supervisor
        self._caller: Attachment | None = None
        self._server: ControlSocket | None = None

    def attach(self, fd: int, caller: int) -> None:
        """Attach a caller that waits for the job. The job is stopped when the caller ends.

        Args:
            fd: The descriptor of the connection to the caller.
            caller: The caller's pid. 0 if the pid is unknown.
        """
        self._caller = Attachment(self._loop, fd, caller, self)

    def listen(self, path: Path) -> None:
        """Listen for clients' requests on a socket."""
        self._server = ControlSocket(self._loop, path, self)

    def notify(self) -> None:
        """Notify the waiting caller that the record has new content."""
        if self._caller is not None:
            self._caller.notify()

    def close(self, *, let_caller_wait: bool = False) -> None:
        """Stop accepting requests, and close the connection to the caller that waits for the job, so that the caller
        stops waiting.

        Args:
            let_caller_wait: Whether to keep the connection to the caller open, so that the caller continues to wait for
                the job.
        """
        if self._caller is not None and not let_caller_wait:
            self._caller.close()
        if self._server is not None:
            self._server.close()

    def caller_gone(self) -> None:
        """Tell the supervisor that the caller has ended, so that the supervisor stops the job."""
        self._supervisor.post(PlainEvent.CALLER_GONE)

    async def answer(self, message: Message) -> dict[str, Any]:
        """Carry out a client's request, and return the response."""
        operation, allowed = message["op"], ["ping", "stop"]
        if operation == "ping":
            return {"ok": True}
        if operation == "stop":
            grace = message.get("grace")
            if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int | float) or not grace >= 0):
                return {"ok": False, "error": f"grace must be seconds, at least 0, or null; got {grace!r}."}
            self._supervisor.post(StopAsked(str(message.get("reason") or "requested by a client"), grace))
            return {"ok": True}
        if (elastic := self._supervisor.attempt.elastic) is not None:
            from estimators.supervisor.elastic import requests

            if operation in requests.OPERATIONS:
                return requests.answer(elastic, message)
            allowed += requests.OPERATIONS
        return {"ok": False, "error": unknown("operation", operation, allowed)}
