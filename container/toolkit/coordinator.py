"""Decide for all hosts, on algo-1: which hosts are ready, which host failed first, and when the job is over.

The coordinator has no connections, so that its rules can be tested without hosts. The caller passes in a host's
message, and gets back the message to send to all hosts.

The hosts' messages: ``ready`` (with the ports that are reserved for the host), ``raised`` (a process's uncaught
exception; the message about the process's end follows soon), ``survived`` (the process ended normally nevertheless),
``failed`` (with a failure), ``stop`` (the host was told to stop), ``evidence`` (whether a rank communicates with the
others), ``stopped``, ``done`` (the host's ranks have ended, or only serve other ranks), ``ended`` (all processes of the
host have ended).

The coordinator's messages to all hosts: ``go`` (with every host's ports), ``stop``, ``end`` (with the first failure),
``finish``.
"""

from __future__ import annotations

import enum

from container.contract.failures import Cause, Failure
from container.contract.messages import Message
from container.contract.names import listed
from container.toolkit.evidence import RankEvidence

#: Causes of failures that may be consequences of a rank's exception. Such a failure may be reported before the rank
#: with the exception ends. For example, Horovod's exit handler makes that rank wait for the other ranks.
_CONSEQUENCES = (Cause.PROCESS, Cause.LAUNCH)


class CoordinatorState(enum.Enum):
    """The state of the cluster."""

    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDING = "ending"
    FINISHED = "finished"


class Coordinator:
    """Make the decisions for all hosts, on algo-1.

    Args:
        hosts: The names of all hosts. The first is algo-1.
        start_timeout: The longest time between two messages of a host that is not ready yet, in seconds.
        now: The current time, in seconds of a monotonic clock.

    Attributes:
        evidence: The facts about whether the ranks communicate with each other, by host and process.
    """

    def __init__(self, hosts: tuple[str, ...], start_timeout: float, now: float) -> None:
        self._hosts = hosts
        self._start_timeout = start_timeout
        self._heard = dict.fromkeys(hosts, now)
        self._ports: dict[str, list[int]] = {}
        self.state = CoordinatorState.GATHERING
        self.failure: Failure | None = None
        self.joined: set[str] = set()
        self._ready: set[str] = set()
        self._done: set[str] = set()
        self._stopped: set[str] = set()
        self.ended: set[str] = set()
        # host and process of the first exception, until that process has ended
        self._raised: tuple[str, str] | None = None
        self._held: Failure | None = None  # the first failure after that exception
        self.evidence: dict[tuple[str, str], RankEvidence] = {}

    def receive(self, host: str, message: Message, now: float) -> Message | None:
        """Handle a host's message. Unknown messages are ignored, because a newer toolkit may send other kinds of
        messages.

        Returns:
            The message for all hosts. None if no message must be sent.
        """
        self._heard[host] = now
        match message["op"]:
            case "ready":
                self._ready.add(host)
                self._ports[host] = message.get("ports", [])
                if self.state is CoordinatorState.GATHERING and self._ready == set(self._hosts):
                    self.state = CoordinatorState.RUNNING
                    return {"op": "go", "ports": self._ports}
            case "raised":
                if self._raised is None and self.state is CoordinatorState.RUNNING:
                    self._raised = (host, message["process"])
            case "survived":
                if self._raised == (host, message["process"]):
                    self._raised = None
                    if self._held is not None:
                        return self.fail(self._held)
            case "failed":
                return self.fail(Failure.from_dict(message["failure"]))
            case "evidence":
                self.evidence.setdefault((host, message["process"]), RankEvidence()).add(message["data"])
            case "stop":
                if self.state in (CoordinatorState.GATHERING, CoordinatorState.RUNNING):
                    self.state = CoordinatorState.STOPPING
                    return {"op": "stop"}
            case "stopped":
                self._stopped.add(host)
                # A host that is done also answers "stopped": its servers may take some time to stop.
                if self.state is CoordinatorState.STOPPING and self._stopped >= set(self._hosts):
                    return self.finish()
            case "done":
                self._done.add(host)
            case "ended":
                self.ended.add(host)
        return None

    @property
    def all_done(self) -> bool:
        """Return whether all hosts are done. The caller then calls :meth:`finish` or :meth:`fail`."""
        return self.state is CoordinatorState.RUNNING and not self.running()

    def fail(self, failure: Failure) -> Message | None:
        """Handle a failure.

        The first failure to arrive is the job's failure. Later failures count as its consequences. If a process has
        reported an exception, failures that may be its consequences are held back until that process has ended.

        Returns:
            The message for all hosts. None if no message must be sent.
        """
        if self.state in (CoordinatorState.ENDING, CoordinatorState.FINISHED):
            return None
        if self.state is CoordinatorState.STOPPING and failure.cause is Cause.PROCESS:
            return None  # ranks that are being stopped may end with an error
        if self._raised not in (None, (failure.host, failure.process)) and failure.cause in _CONSEQUENCES:
            self._held = self._held or failure
            return None
        self.state = CoordinatorState.ENDING
        self.failure = failure
        return {"op": "end", "failure": failure.to_dict()}

    def lost(self, host: str, reason: str, now: float) -> Message | None:
        """Handle the end of a host's connection. The end is a failure, except while the job is being stopped or ended.

        Returns:
            The message for all hosts. None if no message must be sent.
        """
        self.ended.add(host)
        if self._raised is not None and self._raised[0] == host:
            self._raised = None
        if self.state is CoordinatorState.STOPPING:
            return self.receive(host, {"op": "stopped"}, now)
        return self.fail(
            Failure(
                cause=Cause.HOST_LOST,
                message=f"the host was lost: {reason}. Its training process was killed, or its machine or network "
                "failed.",
                host=host,
            )
        )

    def check_gathered(self, now: float) -> Message | None:
        """Fail the job if a host that is not ready yet has sent no message for ``start_timeout`` seconds.

        A host may take any time to prepare, but must send messages meanwhile.

        Returns:
            The message for all hosts. None if no message must be sent.
        """
        others = [host for host in self.missing() if host != self._hosts[0]]
        silent = [host for host in others if now - self._heard[host] > self._start_timeout]
        if not silent:
            return None
        connected = [host for host in silent if host in self.joined]
        return self.fail(
            Failure(
                cause=Cause.TIMEOUT,
                message=f"{listed(silent)} did not answer within {self._start_timeout:g} s "
                f"(connected: {listed(connected) or 'none of them'}).",
                host=silent[0],
                hints=(
                    "Many hosts on few cores need longer to start: use fewer hosts, or give them more time with "
                    "RunOptions(start_timeout=…).",
                )
                if len(silent) > 1
                else (),
            )
        )

    def missing(self) -> list[str]:
        """Return the hosts that are not ready, in the order of the hosts."""
        return [host for host in self._hosts if host not in self._ready]

    def running(self) -> list[str]:
        """Return the hosts that are not done, in the order of the hosts."""
        return [host for host in self._hosts if host not in self._done]

    @property
    def everybody_ended(self) -> bool:
        """Return whether all hosts except algo-1 have ended."""
        return self.ended >= set(self._hosts[1:])

    def finish(self) -> Message:
        """Finish the job, after the job has succeeded or was stopped.

        Returns:
            The message for all hosts.
        """
        self.state = CoordinatorState.FINISHED
        return {"op": "finish"}
