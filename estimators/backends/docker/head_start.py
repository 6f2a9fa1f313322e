"""A job's network and containers, made by the waiting caller while the supervisor still loads what it needs for that.

The caller begins with the network, and makes the containers when the supervisor knows what they shall be. The
supervisor's reaper removes all of it with the rest of the job, and the supervisor says when it has one. What the caller
has made for a supervisor that is gone, it removes itself. When the caller goes, the job ends, and the reaper finds what
it has made by its label.

The supervisor says ``taken``, that there is a reaper for whatever has the job's label, and ``create`` with a
container's ``plan``. The caller says ``network`` with ``made``, whether it has made that, and ``container`` with
``host`` and ``id``, which is null for one that could not be made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from container.contract.messages import Message, MessageError
from container.system.connection import BlockingConnection
from estimators.backends.docker import containers
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.engine_errors import EngineError
from estimators.job.request import TrainingJobSpec

#: How long the supervisor waits for the caller's word, in seconds; the caller may have been stopped.
_PATIENCE = 120.0


class ContainersHeadStart:
    """The caller's side; see :class:`estimators.backends.base.HeadStart`.

    Args:
        spec: The job.
        record: Its record.
    """

    def __init__(self, spec: TrainingJobSpec, record: Path) -> None:
        self._name = containers.network_of(spec)
        self._labels = containers.labels_of(spec, record)
        self._internal = bool(spec.network_isolation)
        ours, self._theirs = socket.socketpair()
        self._ours = BlockingConnection(ours)
        self._sending = threading.Lock()
        self._told = threading.Event()  # of the network's fate
        self._taken = False

    def fileno(self) -> int:
        """The supervisor's end of the connection."""
        return self._theirs.fileno()

    def begin(self) -> None:
        """Make the network and what the supervisor asks for, in threads: there is a supervisor for it."""
        self._theirs.close()
        threading.Thread(target=self._work, name="head start", daemon=True).start()

    def close(self) -> None:
        """There is no supervisor."""
        self._theirs.close()
        self._ours.close()

    def _work(self) -> None:
        engine = Engine(at_once=False)  # so it says with the first call that it cannot be reached
        threads = [threading.Thread(target=self._make_network, args=(engine,), daemon=True)]
        threads[0].start()
        with self._ours:
            try:
                while (message := _receive(self._ours)) is not None:
                    if message["op"] == "create":
                        plan = containers.plan_from_dict(message["plan"])
                        threads.append(threading.Thread(target=self._make_container, args=(engine, plan), daemon=True))
                        threads[-1].start()
                    elif message["op"] == "taken":
                        self._taken = True
                        self._told.set()
            finally:
                self._told.set()  # the supervisor has what it wanted, or is gone
                for thread in threads:
                    thread.join()

    def _make_network(self, engine: Engine) -> None:
        try:
            network = engine.create_network(self._name, self._labels, internal=self._internal)
        except Exception:  # noqa: BLE001 - the supervisor tries it too, and says why it cannot be
            self._send({"op": "network", "made": False})
            return
        if not (self._send({"op": "network", "made": True}) and self._is_taken()):
            with contextlib.suppress(EngineError):
                engine.remove_network(network)

    def _make_container(self, engine: Engine, plan: ContainerPlan) -> None:
        made = None
        with contextlib.suppress(Exception):  # as above
            made = engine.create(plan)
        if not self._send({"op": "container", "host": plan.host, "id": made}) and made is not None:
            with contextlib.suppress(EngineError):
                engine.remove_container(made)

    def _send(self, message: Message) -> bool:
        try:
            with self._sending:
                self._ours.send(message)
        except OSError:
            return False
        return True

    def _is_taken(self) -> bool:
        self._told.wait()
        return self._taken


class Handed:
    """The supervisor's side; threads may share it.

    Args:
        connection: To the caller.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._connection = BlockingConnection(connection)
        self._changed = threading.Condition()
        self._ordered: set[str] = set()
        self._network: bool | None = None
        self._containers: dict[str, str | None] = {}
        self._over = False

    def take(self) -> None:
        """From now on whatever has the job's label is removed in the end."""
        with contextlib.suppress(OSError):
            self._connection.send({"op": "taken"})
        threading.Thread(target=self._listen, daemon=True).start()

    def order(self, plans: Sequence[ContainerPlan]) -> None:
        """Have the caller make containers, without starting them."""
        self._ordered = {plan.host for plan in plans}

        def send() -> None:  # in a thread: a caller that was stopped does not read
            with contextlib.suppress(OSError):
                for plan in plans:
                    self._connection.send({"op": "create", "plan": dataclasses.asdict(plan)})

        threading.Thread(target=send, daemon=True).start()

    def has_network(self) -> bool:
        """Wait until the caller has made the network, and say whether it has."""
        self._await(lambda: self._network is not None)
        return bool(self._network)

    def container(self, host: str) -> str | None:
        """Wait until the caller has made a host's container: its id; None if there is none of the caller's."""
        if host not in self._ordered:
            return None
        self._await(lambda: host in self._containers)
        return self._containers.get(host)

    @property
    def idle(self) -> bool:
        """Whether the caller has said of everything what became of it: the engine may still be busy with the rest."""
        with self._changed:
            return self._network is not None and self._ordered <= self._containers.keys()

    def close(self) -> None:
        """Nothing more is wanted or waited for. A container that the caller still makes, it removes."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the listening thread closes it

    def _await(self, there: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: there() or self._over, timeout=_PATIENCE)

    def _listen(self) -> None:
        with self._connection:
            while (message := _receive(self._connection)) is not None:
                with self._changed:
                    if message["op"] == "network":
                        self._network = bool(message["made"])
                    elif message["op"] == "container":
                        self._containers[message["host"]] = message["id"]
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()


def _receive(connection: BlockingConnection) -> Message | None:
    """Return the next message; None when the other side is gone."""
    try:
        return connection.receive()
    except (OSError, MessageError):
        return None
