"""Horovod's elastic driver as ours, told of changes: run as a script, ``driver_checks.py CHECK``.

In a process of its own: Horovod's threads and libraries stay in the one that has imported it.
"""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any

from container.toolkit.elastic import driver as elastic


def too_few() -> None:
    told, in_vain = threading.Event(), threading.Event()

    class FirstWorker:
        def notify_hosts_updated(self, stamp: int, what: Any) -> None:
            told.set()

    def said(operation: str, **values: Any) -> None:
        if operation == "too_few":
            in_vain.set()

    fleet = elastic.ReportedWorkers()
    fleet.set(["one", "two"])
    rendezvous = elastic.Rendezvous("127.0.0.1")
    driver = elastic.HorovodDriver(rendezvous, fleet, least=2, most=2, timeout=1, reset_limit=None, send=said)
    workers = elastic.Workers({}, said)
    rendezvous.start(elastic.handler(driver, workers))
    driver.start(2, workers.run)
    driver._worker_clients[("one", 0)] = FirstWorker()
    fleet.set(["one"])
    driver.changed()
    assert told.wait(60), "they would train on"
    assert not in_vain.is_set()
    for worker in ("one", "two"):  # both are held: the one that is to leave may be named again
        threading.Thread(target=driver.record_ready, args=(worker, 0), daemon=True).start()
    assert in_vain.wait(60)
    driver.stop()
    rendezvous.stop()


def leaving() -> None:
    """The supervisor has said who leaves, and Horovod has not looked yet: that is a membership as before."""
    memberships: queue.Queue[list[str]] = queue.Queue()

    def said(operation: str, **values: Any) -> None:
        if operation == "membership":
            memberships.put(values["workers"])

    fleet = elastic.ReportedWorkers()
    fleet.set(["one", "two"])
    rendezvous = elastic.Rendezvous("127.0.0.1")
    driver = elastic.HorovodDriver(rendezvous, fleet, least=1, most=2, timeout=60, reset_limit=None, send=said)
    workers = elastic.Workers({}, said)
    rendezvous.start(elastic.handler(driver, workers))
    driver.start(2, workers.run)
    assert memberships.get(timeout=60) == ["one", "two"]
    fleet.set(["two"])  # and it is not told that there is something new
    for worker in ("one", "two"):
        threading.Thread(target=driver.record_ready, args=(worker, 0), daemon=True).start()
    assert memberships.get(timeout=60) == ["one", "two"]
    driver.changed()
    driver.stop()
    rendezvous.stop()


if __name__ == "__main__":
    {"too_few": too_few, "leaving": leaving}[sys.argv[1]]()
