"""A rank that dies while the ranks meet: the others meet again, and none of them ends."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.horovod

CHECKS = Path(__file__).with_name("meeting_checks.py")


@pytest.mark.tensorflow
def test_the_others_meet_again() -> None:
    pytest.importorskip("horovod.tensorflow")
    done = subprocess.run(
        [sys.executable, str(CHECKS)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    for outcome in found:
        assert outcome["struck"], (outcome, done.stderr)
        assert set(outcome["codes"].values()) == {0}, (outcome, done.stderr)
        assert sorted(outcome["met"]) == [[2, 0, 1], [2, 1, 1]], (outcome, done.stderr)


def test_with_too_few_the_workers_are_told_to_meet_and_wait_there() -> None:
    pytest.importorskip("horovod")
    from container.toolkit.elastic import driver as elastic

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
    driver = elastic.Driver(rendezvous, fleet, least=2, most=2, timeout=1, reset_limit=None, send=said)
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


def test_workers_that_meet_while_one_is_told_to_leave_keep_their_ranks() -> None:
    """The supervisor has said who leaves, and Horovod has not looked yet: that is a membership as before."""
    pytest.importorskip("horovod")
    from container.toolkit.elastic import driver as elastic

    memberships: queue.Queue[list[str]] = queue.Queue()

    def said(operation: str, **values: Any) -> None:
        if operation == "membership":
            memberships.put(values["workers"])

    fleet = elastic.ReportedWorkers()
    fleet.set(["one", "two"])
    rendezvous = elastic.Rendezvous("127.0.0.1")
    driver = elastic.Driver(rendezvous, fleet, least=1, most=2, timeout=60, reset_limit=None, send=said)
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
