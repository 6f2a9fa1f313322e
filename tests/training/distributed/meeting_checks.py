"""Ranks that meet by Horovod's elastic driver while one of them dies: run as a script, which says what came of it.

The ranks are forks of a process that has imported TensorFlow, so that all moments together cost one import.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from container.toolkit.elastic import driver as elastic

SIZE = 3
#: When a rank is killed: before the others know its address, or when they call it, in the meeting of all ranks; and in
#: the one of ranks with the same local rank that follows it.
MOMENTS = (("silent", "global"), ("called", "global"), ("silent", "cross_0"))


def work(places: int, results: int) -> None:
    """A rank: it waits for its place, meets the others, and says whom it met."""
    environment = b""
    while not environment.endswith(b"\n"):
        environment += os.read(places, 1 << 16)
    os.environ.update(json.loads(environment))
    hvd.init()
    total = hvd.allreduce(tf.constant(np.array([hvd.rank()], np.int64)), op=hvd.Sum, name="ranks")
    os.write(results, json.dumps([hvd.size(), hvd.rank(), int(total[0])]).encode() + b"\n")
    hvd.shutdown()


class Fleet:
    """Forked ranks, and the driver by which they meet.

    Args:
        how: "silent": the victim dies before it has told its address; "called": once all others know it, while it does
            nothing.
        where: In which meeting.
    """

    def __init__(self, how: str, where: str) -> None:
        self._how, self._where = how, where
        self._asked = 0
        self._struck = False
        self._lock = threading.Lock()
        self.results, self._write = os.pipe()
        self.pids: dict[str, int] = {}
        self._places: dict[str, int] = {}
        for number in range(SIZE):
            name = f"algo-{number + 1}.0.0"
            places, place = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(self.results)
                    work(places, self._write)
                except BaseException:  # noqa: BLE001 - the fork ends here, whatever it was
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            self.pids[name], self._places[name] = pid, place
        os.close(self._write)
        self.victim = list(self.pids)[1]

    def run(self) -> dict[str, Any]:
        """Let them meet, and kill one."""
        fleet = elastic.ReportedWorkers()
        fleet.set(list(self.pids))
        rendezvous = elastic.Rendezvous("127.0.0.1")
        self._driver = elastic.HorovodDriver(
            rendezvous, fleet, least=1, most=SIZE, timeout=60, reset_limit=None, send=self._said
        )
        environment: dict[str, str] = {}
        self._workers = elastic.Workers(environment, self._said)
        port = rendezvous.start(self._handler(elastic.handler(self._driver, self._workers)))
        environment.update(
            HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
            HOROVOD_GLOO_RENDEZVOUS_PORT=str(port),
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            HOROVOD_GLOO_IFACE="lo",
            HOROVOD_ELASTIC="1",
        )
        threading.Thread(target=self._driver.start, args=(SIZE, self._workers.run), daemon=True).start()
        codes = {}
        for name, pid in self.pids.items():
            if name != self.victim:
                codes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                self._workers.ended(name, codes[name])
        said = b"".join(iter(lambda: os.read(self.results, 1 << 16), b""))
        return {"codes": codes, "struck": self._struck, "met": [json.loads(line) for line in said.splitlines()]}

    def _said(self, operation: str, **values: Any) -> None:
        if operation == "start":
            os.write(self._places[values["worker"]], json.dumps(values["environment"]).encode() + b"\n")

    def _handler(self, base: Any) -> Any:
        fleet = self

        class Handler(base):  # type: ignore[misc]
            def _put_value(self, scope: str, key: str, value: bytes) -> None:
                mine = not fleet._struck and scope == fleet._where and key == "1"
                if mine and fleet._how == "silent":
                    fleet.strike()
                    return
                if mine:
                    os.kill(fleet.pids[fleet.victim], signal.SIGSTOP)
                super()._put_value(scope, key, value)

            def _get_value(self, scope: str, key: str) -> Any:
                value = super()._get_value(scope, key)
                if value is not None and scope == fleet._where and key == "1" and fleet._how == "called":
                    fleet.asked()
                return value

        return Handler

    def asked(self) -> None:
        """Somebody gets the victim's address: each to see that it is there, and rank 0 first of all to call it."""
        with self._lock:
            self._asked += 1
            last = self._asked == SIZE
        if last:
            # After the answer: who asked begins to connect.
            threading.Timer(0.2, self.strike).start()

    def strike(self) -> None:
        """Kill the victim, and say so as the supervisor does."""
        self._struck = True
        os.kill(self.pids[self.victim], signal.SIGKILL)
        os.waitpid(self.pids[self.victim], 0)
        self._workers.ended(self.victim, 128 + signal.SIGKILL)


def main() -> None:
    """All moments, in forks made before this process has any thread of its own."""
    fleets: list[tuple[tuple[str, str], Callable[[], dict[str, Any]]]] = [
        (moment, Fleet(*moment).run) for moment in MOMENTS
    ]
    found = []
    for moment, run in fleets:
        began = time.monotonic()
        found.append({"moment": moment, **run(), "seconds": round(time.monotonic() - began, 3)})
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # whatever waits in the driver's threads


if __name__ == "__main__":
    main()
