"""Measure how much of the machine a host's ranks use over time: CPU and memory of each rank, network and GPUs of the
host.

The sources are files in ``/proc`` and NVIDIA's management library. The time between two measurements is so long that
the measurements use less than a quarter of a percent of a core. In a long job, measurements become rare, so that the
job record stays small.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from container.contract.plan import Role
from container.system import machine, processes
from container.system.loop import Loop

if TYPE_CHECKING:
    from container.toolkit.gpus import GpuReader
    from container.toolkit.runtime import Runtime

#: The kind of the events that report resources.
KIND = "resources"

#: In seconds: the longest time between the ranks' start and the first measurement, then the shortest and the longest
#: regular time between later measurements.
_FIRST_S = 0.5
_EVERY_S = 5.0
_SELDOM_S = 60.0
#: Between these two limits, the regular time between measurements is the job's time so far, divided by this number.
_SHARE = 720
#: The time between two measurements is at least this many times as long as the measurement itself took.
_COST = 400

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Indexes of fields of ``/proc/PID/stat``, counted after the name: four CPU times in ticks, and the resident pages. See
#: proc(5).
_TIMES = slice(11, 15)
_RESIDENT = 21


class ResourceSampler:
    """Report the resources that a host's ranks use.

    Args:
        loop: The event loop.
        host: The host's runtime.
    """

    def __init__(self, loop: Loop, host: Runtime) -> None:
        self._loop = loop
        self._host = host
        self._begun = time.monotonic()
        self._cpu: dict[str, tuple[int | None, float, float]] = {}  # pid, seconds of CPU time, time of the measurement
        self._network: tuple[float, float, float] | None = None
        self._gpus: GpuReader | None = None

    def start(self) -> None:
        """Start to measure. Measurements continue as long as the loop runs."""
        if machine.gpus():
            from container.toolkit.gpus import GpuReader

            self._gpus = GpuReader()
        self._loop.call_later(_FIRST_S, self._look)

    def _look(self) -> None:
        began = time.monotonic()
        members = [one for one in self._host.members if one.role is Role.RANK and one.running]
        if not members:
            self._loop.call_later(_FIRST_S, self._look)
            return
        tree = processes.children_by_parent()
        for member in members:
            values = self._of_tree(member.name, member.pid, member.started_at, tree)
            if values:
                self._host.tell(KIND, member.rank, **values)
        values = self._of_host()
        if values:
            self._host.tell(KIND, None, **values)
        now = time.monotonic()
        regular = min(_SELDOM_S, max(_EVERY_S, (now - self._begun) / _SHARE))
        self._loop.call_later(max(regular, (now - began) * _COST), self._look)

    def _of_tree(
        self, name: str, pid: int | None, started_at: float | None, tree: Mapping[int, list[int]]
    ) -> dict[str, float]:
        seconds, resident, now = 0.0, 0, time.monotonic()
        waiting = [pid] if pid is not None else []
        while waiting:
            one = waiting.pop()
            fields = processes.stat(one)
            if len(fields) > _RESIDENT:
                seconds += sum(map(int, fields[_TIMES])) / _TICK
                resident += int(fields[_RESIDENT]) * _PAGE
                waiting += tree.get(one, ())
        before = self._cpu.get(name)
        self._cpu[name] = (pid, seconds, now)
        if not resident:
            return {}
        values: dict[str, float] = {"memory_bytes": resident}
        if before is not None and before[0] == pid and now > before[2]:
            values["cpu_percent"] = round(max(0.0, 100 * (seconds - before[1]) / (now - before[2])), 2)
        elif started_at is not None and now > started_at:
            values["cpu_percent"] = round(100 * seconds / (now - started_at), 2)
        return values

    def _of_host(self) -> dict[str, float]:
        values: dict[str, float] = {}
        traffic, now = _traffic(), time.monotonic()
        if traffic is not None and self._network is not None and now > self._network[2]:
            for name, count, before in zip(("received", "sent"), traffic, self._network, strict=False):
                values[f"network_{name}_bytes_per_s"] = round(max(0.0, (count - before) / (now - self._network[2])), 1)
        self._network = (*traffic, now) if traffic is not None else None
        if self._gpus is not None:
            values.update(self._gpus.latest())
        return values


def _traffic() -> tuple[float, float] | None:
    """Return how many bytes the network interfaces have received and sent. Loopback is not included. Return None if
    unknown.
    """
    received = sent = 0
    try:
        with open("/proc/self/net/dev", encoding="utf-8") as file:
            for line in file:
                name, colon, counts = line.partition(":")
                fields = counts.split()
                if colon and name.strip() != "lo" and len(fields) >= 16:
                    received += int(fields[0])
                    sent += int(fields[8])
    except (OSError, ValueError):
        return None
    return received, sent
