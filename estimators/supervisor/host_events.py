"""Handle the events of a job's hosts: record each event, and forward the events that affect the job."""

from __future__ import annotations

import dataclasses

from container.contract import wire
from container.contract.failures import Failure
from container.system.holding import hold
from estimators.supervisor.attempt import Attempt
from estimators.supervisor.fault_injection import FaultInjector
from estimators.supervisor.journal import Journal
from estimators.supervisor.machine import JobMachine
from estimators.supervisor.remote_status import Mirror


class HostEvents:
    """The handler of the lines and events that hosts send.

    Args:
        journal: The journal of the job.
        machine: The state machine of the job.
        injector: The fault injection of the job.
        mirror: The object that copies the job's status from a managed service.
        managed: Whether the job runs on a managed service.

    Attributes:
        model: The path of the model. None if no model has been reported.
        misplaced: The paths of models that scripts saved into the hosts' working folders, by host.
    """

    def __init__(
        self, journal: Journal, machine: JobMachine, injector: FaultInjector, *, mirror: Mirror, managed: bool
    ) -> None:
        self._journal = journal
        self._machine = machine
        self._injector = injector
        self._mirror = mirror
        self._managed = managed
        self.model: str | None = None
        self.misplaced: dict[str, list[str]] = {}

    def take(self, attempt: Attempt, items: list[wire.Event | wire.Piece], time_ns: int) -> None:
        """Handle lines and events of a host, in the given order.

        Args:
            attempt: The current attempt.
            items: The host's lines and events.
            time_ns: The time at which the host wrote the lines and events, in nanoseconds since the epoch.
        """
        events: list[wire.Event] = []
        for item in items:
            if isinstance(item, wire.Piece):
                self._journal.output(item, time_ns)
                self._injector.output(item)
                continue
            if self._managed:  # toolkits of managed jobs do not know the number of the attempt
                item = dataclasses.replace(item, attempt=self._journal.attempt)
            if item.kind not in wire.UNRECORDED:
                events.append(item)
            self._heed(attempt, item, time_ns)
        self._journal.events(events)

    def _heed(self, attempt: Attempt, event: wire.Event, time_ns: int) -> None:
        """Handle one event of a host: pass the event to the part of the supervisor that the event affects."""
        if attempt.elastic is not None:
            attempt.elastic.host_event(event)
        if event.kind == "failure" and self._machine.reported is None:
            self._machine.reported = Failure.from_dict(event.data)
        elif event.kind == "warning":
            if message := str(event.data.get("message") or ""):
                self.warn(event.host, message, time_ns)
        elif event.kind == "importer" and (reason := event.data.get("unfit") or event.data.get("refused")):
            self._journal.unshared(str(reason))
        elif event.kind == wire.TERMINATED:
            self._machine.terminated = self._machine.terminated or event.host
        elif event.kind == "process_started" and event.rank is not None:
            hold("supervisor.before_process_started")
            attempt.ranks[event.rank] = event.host
        elif event.kind == "checkpoint" and event.data.get("action") == "saved":
            self._machine.attempts.progressed = True
        elif event.kind == "fault_step":
            self._injector.event(event)
        elif event.kind == "misplaced_model":
            self.misplaced[event.host] = [str(path) for path in event.data.get("paths") or ()]
        elif event.kind == "artifacts" and self._machine.everyone_ended:
            self.model = str(event.data.get("model") or "") or None

    def warn(self, host: str, message: str, time_ns: int) -> None:
        """Store a warning in the status, and write the warning into the log."""
        self._journal.warn(message)
        self._journal.say(host, f"warning: {message}", time_ns)
        if self._mirror.begun:
            self._journal.write_status()  # the supervisor of a managed job may not write the status again for hours
