"""The process that keeps the copy of a job whose supervisor runs at a dispatcher.

It takes the place of the supervisor here: it holds the record's lock, brings the job to the dispatcher, writes what is
new there into the record, and hands on what the job is asked for. The job does not need it. When it has ended before
the job, another one begins where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from container.contract.failures import Cause, Failure
from container.contract.messages import Message
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends import dispatchers
from estimators.backends.dispatchers import parcels
from estimators.backends.dispatchers.base import Parcel
from estimators.job.errors import RecordError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.replication import Replica
from estimators.records.states import SecondaryStatus
from estimators.supervisor.ipc_server import ControlSocket

#: How long to wait before a dispatcher is reached for again, in seconds; doubled each time, up to the second.
_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
#: After how many seconds without it those who wait for the job are told, and after how many nobody tries any more.
_TELL_AFTER_S, _GIVE_UP_AFTER_S = 60.0, 1800.0

Answer = Callable[[dict[str, Any]], None]


class DispatchedJob:
    """One job at a dispatcher.

    Args:
        loop: The loop that drives it.
        record: The copy of its record, whose lock is held.
    """

    def __init__(self, loop: AsyncioLoop, record: JobRecord) -> None:
        self._loop = loop
        self._record = record
        self._options = RunOptions.from_dict(record.read_options())
        assert self._options.dispatcher is not None
        self._place = self._options.dispatcher
        self._status = record.stored_status() or statuses.new_status(record.read_request(), time.time())
        self._replica = Replica(record)
        self._dispatcher = dispatchers.load(self._place)(loop, self._place, self._options.dispatcher_options)
        self._control = ControlSocket(loop, record.control_socket, self._answer)
        self._there: str | None = None  # the folder of records there
        self._wait = _WAIT_S
        self._lost_since: float | None = None
        self._why = ""
        self._waiting: list[tuple[Message, Answer]] = []  # what was asked before the dispatcher had the job
        #: Set when there is nothing more to do here.
        self.over = asyncio.Event()
        loop.on_signal(signal.SIGTERM, self._let_go)
        loop.on_signal(signal.SIGHUP, lambda: None)
        loop.on_signal(signal.SIGINT, lambda: None)

    def start(self) -> None:
        """Bring the job there, or go on following it."""
        self._keep(supervisor_pid=os.getpid())
        if statuses.lives_elsewhere(self._status):
            self._follow()
            return
        self._say(f"{self._place}: connecting")
        self._dispatcher.submit(self._parcel, self._say, self._taken, self._refused, self._unknown)

    def close(self) -> None:
        """Let go of the dispatcher and the socket."""
        self._control.close()
        self._dispatcher.close()

    # --- bringing it there ---

    def _parcel(self) -> Parcel:
        spec = TrainingJobSpec.from_request(self._record.read_request())
        parcel = parcels.of(self._record, spec, self._options)
        self._keep(elsewhere=True)  # on record before it is sent: whatever happens now, the job may be there
        return parcel

    def _taken(self) -> None:
        self._keep(taken=True)
        self._follow()

    def _refused(self, text: str) -> None:
        self._fail(Failure(cause=Cause.LAUNCH, message=f"dispatcher {self._place}: {text}"))

    def _unknown(self, text: str) -> None:
        """Whether it was taken, following will tell."""
        self._lost(text)

    def _fail(self, failure: Failure) -> None:
        self._status = statuses.fail(self._status, failure, time.time())
        self._keep(elsewhere=False)
        self._end()

    def _stop(self, reason: str) -> None:
        """End a job that the dispatcher does not have yet."""
        for step in (SecondaryStatus.STOPPING, SecondaryStatus.STOPPED):
            self._status = statuses.transition(self._status, step, time.time(), f"Stopped: {reason}.")
        self._keep()
        self._end()

    # --- following it ---

    def _follow(self) -> None:
        if not self.over.is_set():
            self._dispatcher.follow(self._record.name, self._replica.have, self._take, self._lost)

    def _take(self, message: Message) -> None:
        operation = message["op"]
        if operation == "job":
            self._found(message)
        elif operation == "status":
            self._described(message["status"])
        elif operation == "missing":
            text = self._why or "the connection was lost before the dispatcher had received the job"
            self._keep(missing=True)
            self._fail(
                Failure(
                    cause=Cause.LAUNCH, message=f"dispatcher {self._place}: {message.get('error')} ({text}).".strip()
                )
            )
        elif operation == "end":
            self._end()
        else:
            try:
                self._replica.take(message)
            except RecordError as error:  # the disk is full, say; the job goes on there
                self._dispatcher.close()
                self._lost(str(error))

    def _found(self, message: Message) -> None:
        self._there = str(message["jobs"])
        self._lost_since, self._wait, self._why = None, _WAIT_S, ""
        if not self._record.read_request():  # it was not started from here
            here = str(self._record.path.parent)
            options = {
                **message["options"],
                "dispatcher": self._place,
                "dispatcher_options": dict(self._options.dispatcher_options),
            }
            self._record.write_options(options)
            self._record.write_request(parcels.relocated(message["request"], self._there, here))
        waiting, self._waiting = self._waiting, []
        for asked, answer in waiting:
            self._dispatcher.ask(asked, answer)

    def _described(self, there: dict[str, Any]) -> None:
        if self._there is not None:
            there = parcels.relocated(there, self._there, str(self._record.path.parent))
        own = {**there.get(statuses.OWN, {}), "elsewhere": True, "taken": True, "seen": time.time()}
        self._status = {**there, statuses.OWN: own}
        if self._replica.lacks is not None:
            self._status = statuses.with_warning(
                self._status, f"the job's files are at {self._place} only, because they could not be written here: "
                f"{self._replica.lacks}.",
            )  # fmt: skip
        self._keep(supervisor_pid=os.getpid())

    def _lost(self, text: str) -> None:
        """The dispatcher is not reached: try again, and for long."""
        if self.over.is_set():
            return
        now = time.monotonic()
        self._why = text
        self._lost_since = self._lost_since or now
        self._keep(unreached=text)
        if now - self._lost_since > _GIVE_UP_AFTER_S:
            self._let_go()
            return
        self._loop.call_later(self._wait * random.uniform(0.8, 1.2), self._follow)
        self._wait = min(self._wait * 2, _LONGEST_WAIT_S)

    # --- what it is asked ---

    def _answer(self, message: Message, answer: Answer) -> None:
        lost = time.monotonic() - self._lost_since if self._lost_since is not None else 0.0
        if message["op"] == "ping":
            text = (
                f"the dispatcher {self._place} has not been reached for {lost:.0f} s ({self._why}); the job may still "
                "be running."
            )
            answer({"ok": True} if lost < _TELL_AFTER_S else {"ok": False, "error": text})
        elif message["op"] == "stop" and not statuses.lives_elsewhere(self._status):
            self._stop(str(message.get("reason") or "requested by a client"))
            answer({"ok": True})
        elif self._there is None and self._lost_since is None:
            self._waiting.append((message, answer))
        else:
            self._dispatcher.ask(message, answer)

    # --- the copy ---

    def _say(self, text: str) -> None:
        self._status = statuses.transition(self._status, SecondaryStatus.STARTING, time.time(), text)
        self._keep()

    def _keep(self, **values: Any) -> None:
        self._status = statuses.with_own(self._status, **values)
        with contextlib.suppress(RecordError):  # it is written again with what comes next
            self._record.write_status(self._status)

    def _end(self) -> None:
        self.over.set()
        for message, answer in self._waiting:
            answer({"ok": False, "error": f"{message['op']}: the job has already ended."})
        self._waiting = []

    def _let_go(self) -> None:
        self._end()


def run(loop: AsyncioLoop, record: JobRecord) -> None:
    """Keep the copy of a job's record until the job is over, or nobody can."""
    job = DispatchedJob(loop, record)
    try:
        job.start()
        loop.run(job.over.wait())
    finally:
        job.close()
