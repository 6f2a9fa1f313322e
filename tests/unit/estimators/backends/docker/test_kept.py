"""Whose a pool of kept containers is: its reaper, a real one's loop, gives it to one job at a time."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from container.system import sockets
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.docker import kept, reaper, reapers
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.reapers import Duty
from estimators.backends.images.errors import EngineError

KEY, HOSTS = "0123456789abcdef", ("algo-1",)


class Serving(threading.Thread):
    """The reaper of a pool, in a thread: what it would remove is noted."""

    def __init__(self, pool: kept.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.removed: list[tuple[dict[str, Any], float]] = []
        self._listener = sockets.listen(pool.path / "reaper")
        monkeypatch.setattr(reaper, "_remove", lambda duty, quiet: self.removed.append((duty, quiet)))
        self.start()

    def run(self) -> None:
        with self._listener:
            reaper.main(self._listener)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[kept.Pool]:
    """A pool with one container, whose first process listens, in a folder with a long path."""
    found = kept.new(tmp_path / ("a-folder-with-a-long-name-" * 5), KEY)
    found.socket("algo-1").parent.mkdir(parents=True)
    with sockets.listen(found.socket("algo-1")):
        yield found


@pytest.fixture
def serving(pool: kept.Pool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(reapers, "_ANSWER_S", 0.2)
    found = Serving(pool, monkeypatch)
    yield found
    while found.is_alive():  # it ends with a supervisor that says nothing
        with contextlib.suppress(OSError), sockets.connect(pool.path / "reaper") as connection:
            connection.sendall(b'{"remove": []}\n')
        found.join(0.1)


def home_of(pool: kept.Pool) -> Path:
    return pool.path.parents[1]


def duty_of(pool: kept.Pool, **more: Any) -> Duty:
    return Duty(label=kept.POOL_LABEL, value=str(pool.path), **more)


def test_one_job_at_a_time_has_a_pool(
    pool: kept.Pool, serving: Serving, asyncio_loop: AsyncioLoop, tmp_path: Path
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    first = reapers.Reaper(asyncio_loop, set(), tmp_path / "log")
    first.take(sockets.connect(pool.path / "reaper"), pool.path, duty_of(pool, remove=(str(runtime),)))
    assert reapers.is_alive(pool.path) and kept.claim(home_of(pool), KEY, HOSTS) is None, "a job has it"
    first.finish("keep 60")
    assert kept.claim(home_of(pool), "another", HOSTS) is None
    found = kept.claim(home_of(pool), KEY, HOSTS)
    assert found is not None and found[0] == pool
    assert not runtime.exists() and not serving.removed, "what was of the first job alone"
    second = reapers.Reaper(asyncio_loop, set(), tmp_path / "log")
    second.take(found[1], pool.path, duty_of(pool))
    assert kept.claim(home_of(pool), KEY, HOSTS) is None
    second.finish("done")
    serving.join()
    [(duty, quiet)] = serving.removed
    assert (duty["value"], quiet) == (str(pool.path), 0.0)
    assert not reapers.is_alive(pool.path) and kept.claim(home_of(pool), KEY, HOSTS) is None


def test_the_pool_of_a_supervisor_that_was_killed_is_removed(pool: kept.Pool, serving: Serving) -> None:
    supervisor = sockets.connect(pool.path / "reaper")
    supervisor.sendall(json.dumps({"remove": [], "value": "x"}).encode() + b"\n")
    supervisor.close()
    serving.join()
    assert serving.removed == [({"remove": [], "value": "x"}, 1.0)], "something may still be being made"


def test_a_pool_has_its_time(pool: kept.Pool, serving: Serving, asyncio_loop: AsyncioLoop, tmp_path: Path) -> None:
    job = reapers.Reaper(asyncio_loop, set(), tmp_path / "log")
    job.take(sockets.connect(pool.path / "reaper"), pool.path, duty_of(pool))
    job.finish("keep 0.01")
    serving.join()
    assert [quiet for _, quiet in serving.removed] == [0.0]


def test_a_pool_whose_containers_have_ended_is_removed(
    pool: kept.Pool, serving: Serving, asyncio_loop: AsyncioLoop, tmp_path: Path
) -> None:
    job = reapers.Reaper(asyncio_loop, set(), tmp_path / "log")
    job.take(sockets.connect(pool.path / "reaper"), pool.path, duty_of(pool))
    job.finish("keep 60")
    pool.socket("algo-1").unlink()
    assert kept.claim(home_of(pool), KEY, HOSTS) is None
    serving.join()
    [(duty, quiet)] = serving.removed
    assert (duty["value"], quiet) == (str(pool.path), 1.0)


def test_a_pool_that_is_being_made_is_left_to_its_job(pool: kept.Pool, serving: Serving) -> None:
    pool.socket("algo-1").unlink()
    assert kept.claim(home_of(pool), KEY, HOSTS) is None
    assert reapers.is_alive(pool.path) and not serving.removed


class Containers(Engine):
    """An engine of which each container has ended."""

    def inspect(self, container: str) -> dict[str, Any]:
        return {"State": {"Running": False}}


def test_a_kept_container_that_ends_at_its_start_is_not_waited_for(
    pool: kept.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_ASK_S", 0.0)
    pool.socket("algo-1").unlink()
    with pytest.raises(EngineError, match="the kept container ended before a job ran in it"):
        kept.start(pool, "algo-1", {}, Containers())


def test_secrets_go_with_the_job(pool: kept.Pool) -> None:
    pool.secrets("algo-1").mkdir(parents=True)
    (pool.secrets("algo-1") / "secrets.json").touch()
    assert pool.forget_secrets() and not list(pool.path.glob("secrets/*/*"))
