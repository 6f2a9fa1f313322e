"""Whose a pool of kept containers is: its reaper gives it to one job at a time."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.system import locks
from estimators.backends.docker import keeping, warm


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Path]:
    """A pool with one container, whose first process listens, in a folder with a long path."""
    home = tmp_path / ("a-folder-with-a-long-name-" * 5)
    path = home / "warm" / "one"
    sockets = path / "sockets" / "algo-1"
    sockets.mkdir(parents=True)
    (path / "state.json").write_text(json.dumps({"key": "k", "containers": {"algo-1": "c1"}}))
    held = locks.take(path / keeping.LOCK)  # as its reaper does
    assert held is not None
    with keeping.listen(sockets, "toolkit"):
        yield path
    with contextlib.suppress(OSError):
        os.close(held)


class Waiting(threading.Thread):
    """A reaper that waits for a job."""

    def __init__(self, pool: Path, seconds: float) -> None:
        super().__init__()
        self.job: socket.socket | None = None
        self._pool, self._seconds = pool, seconds
        keeping.offer(pool)
        self.start()

    def run(self) -> None:
        time.sleep(0.05)  # it has to load something first, for which the next job waits
        self.job = keeping.wait_for_job(self._pool, self._seconds)


def test_one_job_at_a_time_has_a_pool(pool: Path) -> None:
    home = pool.parents[1]
    assert warm.claim(home, "k") is None, "nobody waits"
    waiting = Waiting(pool, 30)
    assert warm.claim(home, "other") is None
    found = warm.claim(home, "k")
    waiting.join()
    assert found is not None and found.path == pool and found.containers == {"algo-1": "c1"}
    assert found.reaper is not None and waiting.job is not None
    assert warm.claim(home, "k") is None, "a job has it"
    found.reaper.sendall(b"duty\nkeep 5")
    found.reaper.close()
    with waiting.job, waiting.job.makefile("rb") as words:
        assert (words.readline(), words.read()) == (b"duty\n", b"keep 5")


def test_a_pool_whose_containers_have_ended_is_none(pool: Path) -> None:
    (pool / "sockets" / "algo-1" / "toolkit").unlink()
    waiting = Waiting(pool, 30)
    assert warm.claim(pool.parents[1], "k") is None
    waiting.join()
    assert waiting.job is not None
    with waiting.job:
        assert waiting.job.recv(1) == b"", "so the reaper removes it"


def test_a_pool_has_its_time(pool: Path) -> None:
    assert keeping.wait_for_job(pool, 0.01) is None
    assert not (pool / "reaper").exists()


def test_a_pool_whose_reaper_was_killed_is_none(pool: Path) -> None:
    keeping.offer(pool)
    assert keeping.is_used(pool)
    (pool / keeping.LOCK).unlink()
    assert not keeping.is_used(pool) and warm.claim(pool.parents[1], "k") is None


def test_secrets_go_with_the_job(pool: Path) -> None:
    one = warm.Pool(pool, "k")
    one.secrets("algo-1").mkdir(parents=True)
    (one.secrets("algo-1") / "secrets.json").touch()
    assert one.keep() and not list(pool.glob("secrets/*/*"))
