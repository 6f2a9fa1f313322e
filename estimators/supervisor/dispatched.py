"""Maintain the local copy of a job's record if the job's supervisor runs at a dispatcher, a machine to which the job is
submitted.

The code runs in the process that would otherwise be the job's supervisor on this machine. The process holds the
record's lock and submits the job to the dispatcher. Then it writes the dispatcher's messages into the record, and
forwards the clients' requests to the dispatcher. The job does not depend on this process. If the process ends before
the job, a new process can continue to maintain the copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from typing import Any

from container.contract.failures import Cause, Failure
from container.contract.messages import Message
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends import dispatchers
from estimators.backends.dispatchers import parcels
from estimators.backends.dispatchers.base import DispatchRefused, Parcel, Unreached
from estimators.job.errors import FleetfitError, RecordError
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.replication import Replica
from estimators.records.states import SecondaryStatus
from estimators.supervisor.ipc_server import ControlSocket

#: The first and the longest pause before fleetfit connects to a dispatcher again, in seconds. Each pause is twice as
#: long as the previous pause.
_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
#: Two times without a connection, in seconds. After the first, clients receive an error. After the second, this process
#: gives up and exits.
_TELL_AFTER_S, _GIVE_UP_AFTER_S = 60.0, 1800.0


class DispatchedJob:
    """The local representative of one job that runs at a dispatcher.

    Args:
        loop: The loop that runs the job's callbacks.
        record: The local copy of the job's record. The caller holds the record's lock.
    """

    def __init__(self, loop: AsyncioLoop, record: JobRecord) -> None:
        self._record = record
        self._options = JobOptions.from_dict(record.read_options())
        assert self._options.dispatcher is not None
        self._place = self._options.dispatcher
        self._status = record.stored_status() or statuses.new_status(record.read_request(), time.time())
        self._replica = Replica(record)
        self._dispatcher = dispatchers.load(self._place)(loop, self._place, self._options.dispatcher_options)
        self._control = ControlSocket(loop, record.control_socket, self)
        self._there: str | None = None  # the dispatcher's folder of job records
        self._wait = _WAIT_S
        self._lost_since: float | None = None
        self._why = ""
        self._settled = asyncio.Event()  # set when the dispatcher has accepted the job, or will never accept it
        self._over = asyncio.Event()  # set when the process may end
        loop.add_signal_handler(signal.SIGTERM, self._over.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        loop.add_signal_handler(signal.SIGINT, lambda: None)

    async def keep(self) -> None:
        """Update the copy of the record until the job needs no more updates.

        The updates end when the job is over, or when the job was stopped before it was submitted. The updates also end
        when the dispatcher has been unreachable for ``_GIVE_UP_AFTER_S`` seconds.
        """
        tasks = [asyncio.ensure_future(self._keep_copy()), asyncio.ensure_future(self._over.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._settled.set()
            await asyncio.sleep(0)  # tasks that wait for the event can respond before the loop ends

    async def _keep_copy(self) -> None:
        """Follow the job until it is over. If the job has not been submitted to the dispatcher yet, submit the job
        first.
        """
        self._note(supervisor_pid=os.getpid())
        if not statuses.lives_elsewhere(self._status):
            try:
                await self._submit()
            except (DispatchRefused, FleetfitError, OSError) as error:
                self._fail(f"dispatcher {self._place}: {error}")
                return
            except Unreached as error:  # the loop below finds out whether the dispatcher has accepted the job
                await self._pause(str(error))
        while not self._over.is_set():
            try:
                messages = self._dispatcher.follow(self._record.name, self._replica.have)
                async with contextlib.aclosing(messages):
                    async for message in messages:
                        self._take(message)
                return
            except (Unreached, RecordError) as error:  # for example a full disk; the job at the dispatcher continues
                await self._pause(str(error))

    def close(self) -> None:
        """Close the connections to the dispatcher and the control socket."""
        self._control.close()
        self._dispatcher.close()

    # --- submitting the job ---

    async def _submit(self) -> None:
        """Submit the job to the dispatcher.

        Raises:
            DispatchRefused: the job cannot run at the dispatcher.
            FleetfitError: the job cannot be sent.
            OSError: a file of the job cannot be read.
            Unreached: it is not known whether the dispatcher has accepted the job.
        """
        self._say(f"{self._place}: connecting")
        telling = asyncio.ensure_future(self._tell_news())
        try:
            await self._dispatcher.prepare()
            parcel = self._parcel()
            try:
                await self._dispatcher.submit(parcel)
            except (FleetfitError, OSError) as error:
                raise Unreached(str(error)) from error
        finally:
            telling.cancel()
        self._note(taken=True)

    async def _tell_news(self) -> None:
        """Copy the progress of the submission into the job's status, until the dispatcher's own status replaces this
        text.
        """
        while True:
            self._say(await self._dispatcher.news.get())

    def _parcel(self) -> Parcel:
        spec = TrainingJobSpec.from_request(self._record.read_request())
        parcel = parcels.of(self._record, spec, self._options)
        self._note(elsewhere=True)  # recorded before sending, because the dispatcher may have the job from then on
        return parcel

    def _fail(self, text: str) -> None:
        self._status = statuses.fail(self._status, Failure(cause=Cause.LAUNCH, message=text), time.time())
        self._note(elsewhere=False)

    def _stop(self, reason: str) -> None:
        """Stop a job that has not been submitted to the dispatcher yet."""
        for step in (SecondaryStatus.STOPPING, SecondaryStatus.STOPPED):
            self._status = statuses.transition(self._status, step, time.time(), f"Stopped: {reason}.")
        self._note()
        self._over.set()

    # --- following the job ---

    def _take(self, message: Message) -> None:
        operation = message["op"]
        if operation == "job":
            self._found(message)
        elif operation == "status":
            self._described(message["status"])
        elif operation == "missing":
            text = self._why or "the connection was lost before the dispatcher had received the job"
            self._note(missing=True)
            self._fail(f"dispatcher {self._place}: {message.get('error')} ({text}).")
        elif operation != "end":
            self._replica.take(message)

    def _found(self, message: Message) -> None:
        self._there = str(message["jobs"])
        self._lost_since, self._wait, self._why = None, _WAIT_S, ""
        if not self._record.read_request():  # the job was started from another machine
            here = str(self._record.path.parent)
            options = {
                **message["options"],
                "dispatcher": self._place,
                "dispatcher_options": dict(self._options.dispatcher_options),
            }
            self._record.write_options(options)
            self._record.write_request(parcels.relocated(message["request"], self._there, here))
        self._settled.set()

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
        self._note(supervisor_pid=os.getpid())

    async def _pause(self, text: str) -> None:
        """Record why the dispatcher cannot be reached, and wait before the next attempt.

        The length of the pause doubles each time. After ``_GIVE_UP_AFTER_S`` seconds without a connection, give up.
        """
        now = _now()
        self._why = text
        self._lost_since = self._lost_since or now
        self._note(unreached=text)
        if now - self._lost_since > _GIVE_UP_AFTER_S:
            self._over.set()
            return
        await asyncio.sleep(self._wait * random.uniform(0.8, 1.2))
        self._wait = min(self._wait * 2, _LONGEST_WAIT_S)

    # --- requests of clients ---

    async def answer(self, message: Message) -> dict[str, Any]:
        """Respond to a request of a client. A ``ping``, and a ``stop`` of a job that was not submitted yet, are handled
        here. All other requests are forwarded to the dispatcher.

        Before a request is forwarded, the method waits until the dispatcher has the job. If the job ends before, the
        response is an error.
        """
        lost = _now() - self._lost_since if self._lost_since is not None else 0.0
        if message["op"] == "ping":
            text = (
                f"the dispatcher {self._place} has not been reached for {lost:.0f} s ({self._why}). The job may "
                "still be running."
            )
            return {"ok": True} if lost < _TELL_AFTER_S else {"ok": False, "error": text}
        if message["op"] == "stop" and not statuses.lives_elsewhere(self._status):
            self._stop(str(message.get("reason") or "requested by a client"))
            return {"ok": True}
        if self._there is None and self._lost_since is None:
            await self._settled.wait()
            if self._there is None:
                return {"ok": False, "error": f"{message['op']}: the job has already ended."}
        return await self._dispatcher.ask(message)

    # --- the copy ---

    def _say(self, text: str) -> None:
        self._status = statuses.transition(self._status, SecondaryStatus.STARTING, time.time(), text)
        self._note()

    def _note(self, **values: Any) -> None:
        self._status = statuses.with_own(self._status, **values)
        with contextlib.suppress(RecordError):  # the next change writes the whole status again
            self._record.write_status(self._status)


def _now() -> float:
    return asyncio.get_running_loop().time()


def run(loop: AsyncioLoop, record: JobRecord) -> None:
    """Maintain the copy of a job's record until the job is over or the dispatcher has been unreachable for too long."""
    job = DispatchedJob(loop, record)
    try:
        loop.run(job.keep())
    finally:
        job.close()
