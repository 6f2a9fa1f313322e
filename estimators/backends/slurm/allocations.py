"""Request a job's allocations from Slurm through a separate process, the keeper (:mod:`.keeper`)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts.child import ChildProcess
from estimators.backends.slurm import keeper

Event = dict[str, Any]


class _Question(NamedTuple):
    """A request to the keeper, and the queue of the keeper's answers to this request."""

    message: Event
    answers: asyncio.Queue[Event]


class Refused(Exception):
    """Raised if Slurm refuses an allocation. The message is Slurm's reason."""


class AllocationQueue:
    """The supervisor's connection to the keeper, the process that runs Slurm's commands for the job.

    Args:
        loop: The supervisor's event loop.
        protected: The pids of the processes that the supervisor does not kill. The keeper is added to them, because it
            has to cancel the allocations after the end of the supervisor.
    """

    def __init__(self, loop: AsyncioLoop, protected: set[int]) -> None:
        self._loop = loop
        self._protected = protected
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Question] = {}
        self._jobs: set[str] = set()
        self._keeper: ChildProcess | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closed = False

    async def submit(self, argv: Sequence[str], script: str) -> str:
        """Submit a batch script, and return the number of the Slurm job.

        If the caller's task is cancelled, the Slurm job is cancelled, too.

        Raises:
            Refused: Slurm refuses the allocation.
        """
        with self._ask({"op": "submit", "argv": list(argv), "script": script}) as answers:
            event = await answers.get()
        if event["event"] == "refused":
            raise Refused(event["reason"])
        return str(event["job"])

    def watch(self, job: str, *, again: bool = False) -> contextlib.AbstractContextManager[asyncio.Queue[Event]]:
        """Return a context manager that yields a queue of a Slurm job's states.

        The last item says that the job is running or has ended.

        Args:
            job: The number of the Slurm job.
            again: Whether Slurm should first requeue the job.
        """
        return self._ask({"op": "again" if again else "watch", "job": job})

    async def look(self, job: str) -> Event:
        """Request the state of a Slurm job, and return the keeper's answer."""
        with self._ask({"op": "look", "job": job}) as answers:
            return await answers.get()

    def cancel(self, job: str) -> None:
        """Cancel a Slurm job."""
        self._jobs.discard(job)
        self._send({"op": "cancel", "job": job})

    def close(self) -> None:
        """Close the keeper's standard input, without waiting. The keeper then cancels all allocations and exits."""
        self._closed = True
        if self._listening is not None:
            self._listening.cancel()
        if self._keeper is not None:
            self._keeper.close()

    # --- the keeper ---

    @contextlib.contextmanager
    def _ask(self, message: Event) -> Iterator[asyncio.Queue[Event]]:
        number = next(self._numbers)
        asked = self._asked[number] = _Question({**message, "id": number}, asyncio.Queue())
        self._send(asked.message)
        try:
            yield asked.answers
        finally:
            del self._asked[number]
            while not asked.answers.empty():
                self._unheard(asked.answers.get_nowait())

    def _unheard(self, event: Event) -> None:
        """Handle an answer that no task waits for any more.

        If the answer says that a Slurm job was submitted, cancel the Slurm job.
        """
        if event["event"] == "submitted":
            self.cancel(event["job"])

    def _send(self, message: Event) -> None:
        if self._closed:
            return
        if self._keeper is None:
            words = [sys.executable, "-I", str(Path(keeper.__file__))]
            self._keeper = ChildProcess(self._loop, words, cwd="/", protected=self._protected, logs_errors=True)
            self._listening = self._loop.start(self._listen(self._keeper))
        self._keeper.send(json.dumps(message).encode() + b"\n")

    async def _listen(self, process: ChildProcess) -> None:
        """Pass the keeper's answers to the tasks that wait for them. If the keeper was killed, start another keeper."""
        with contextlib.suppress(EOFError):
            while True:
                event: Event = json.loads(await process.line())
                if event["event"] == "submitted":
                    self._jobs.add(event["job"])
                if (asked := self._asked.get(event["id"])) is not None:
                    asked.answers.put_nowait(event)
                else:
                    self._unheard(event)
        process.close()
        self._keeper = None
        for job in self._jobs:
            self._send({"op": "hold", "job": job})
        for message, answers in list(self._asked.values()):
            if message["op"] == "submit":  # Slurm may have the job already, so do not submit it again
                answers.put_nowait({"event": "refused", "reason": "the process that talks to Slurm was killed"})
            else:
                self._send({**message, "op": "watch"} if message["op"] == "again" else message)
