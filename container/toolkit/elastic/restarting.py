"""Run one host of an elastic job that restarts its workers, with new ranks, whenever hosts join or leave.

The script is started only when the worker has its rank. In addition to the messages for
:class:`container.toolkit.elastic.host.ElasticRuntime`, the supervisor sends ``restart``. The runtime then ends the
worker's process, and starts a new process, which waits for the worker's next rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

from container.contract.elastic import split_worker
from container.contract.environment import Environment
from container.contract.messages import Message
from container.system.loop import SelectorLoop
from container.toolkit.elastic.host import ElasticRuntime
from container.toolkit.output import Output
from container.toolkit.process_group import ClusterProcess, Gang
from container.toolkit.runtime import HostSettings

if TYPE_CHECKING:
    from container.toolkit.train import Preparation


class RestartingRuntime(ElasticRuntime):
    """Run one host of an elastic job that restarts its workers whenever hosts join or leave. See
    :class:`ElasticRuntime`.
    """

    def __init__(self, loop: SelectorLoop, output: Output, environment: Environment, settings: HostSettings) -> None:
        super().__init__(loop, output, environment, settings)
        self._restarting: dict[int, str] = {}  # id of a member that must end -> its worker
        self._slots = 1
        self._imported = False
        self._unready: list[str] = []  # workers that wait for their importer

    def ready(self, preparation: Preparation, gang: Gang, ports: tuple[int, ...]) -> None:
        """Report that this host is ready. See :class:`ElasticRuntime`.

        Workers are reported as ready only when their importer, the process that imports their packages, has finished.
        """
        self._imported = gang.importer is None
        super().ready(preparation, gang, ports)

    def on_importer(self, message: Message) -> None:
        super().on_importer(message)
        if "importing" in message:
            return
        self._imported = True
        for worker in self._unready:
            self.tell("worker_ready", worker=worker)
        self._unready.clear()

    def _where(self, ports: tuple[int, ...]) -> dict[str, Any]:
        own = "127.0.0.1" if self._env.machine.shared else self._host
        return {"address": self._env.addresses.get(self._host, own), "ports": list(ports)}

    def _launch(self, name: str, slot: int, slots: int, place: str) -> None:
        self._slots = slots
        super()._launch(name, slot, slots, "wait")
        worker = self._workers[name]
        if self._imported:
            self.tell("worker_ready", worker=worker)
        else:
            self._unready.append(worker)

    def _instructed(self, message: Message) -> None:
        if message["op"] != "restart":
            super()._instructed(message)
            return
        worker = str(message["worker"])
        member = self._member(worker)
        if member is None or self._gang is None or self._stopping or self._outcome is not None:
            return
        if member.ended:
            self._again(worker)
            return
        gang = self._gang
        if id(member) not in self._restarting:
            self._restarting[id(member)] = worker
            member.told = True
            if member.wrapper is not None:
                gang.signal(member, signal.SIGTERM)
            elif member.wrapper_pid is not None:  # the process has not connected yet, and has nothing to save
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.wrapper_pid, signal.SIGKILL)
        self._loop.call_later(float(message["grace"]), lambda: gang.signal(member, signal.SIGKILL))

    def _again(self, worker: str) -> None:
        _, slot, _ = split_worker(worker)
        self._launch(f"worker {slot}", slot, self._slots, "wait")

    def on_ended(self, member: ClusterProcess) -> None:
        worker = self._restarting.pop(id(member), None)
        if worker is None or self._stopping or self._outcome is not None:
            super().on_ended(member)
            return
        assert self._gang is not None
        self._gang.release_one(member)
        self._again(worker)

    def _more_of_end(self, member: ClusterProcess) -> dict[str, Any]:
        return {"waited": member.pid is None}
