"""Whose a pool of kept containers is: one job's at a time, and its remover's when its time is over."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.system import sockets
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.docker import kept, ownership, reaper
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.kept import ContainerPool
from estimators.backends.images.engine import ImageFacts
from estimators.backends.images.errors import EngineError

KEY, HOSTS = "0123456789abcdef", ("algo-1",)
FIRST, SECOND = "/jobs/first", "/jobs/second"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[ContainerPool, int]]:
    """A pool with one container, whose first process listens, in a folder with a long path; and its lock."""
    pool, lock = kept.new(tmp_path / ("a-folder-with-a-long-name-" * 5), KEY, FIRST)
    pool.socket("algo-1").parent.mkdir(parents=True)
    with sockets.listen(pool.socket("algo-1")):
        yield pool, lock


@pytest.fixture
def pool(made: tuple[ContainerPool, int]) -> ContainerPool:
    """The same pool after its first job, which has kept it for a minute."""
    made[0].keep(FIRST, 60)
    os.close(made[1])
    return made[0]


def home_of(pool: ContainerPool) -> Path:
    return pool.path.parents[1]


def claim(pool: ContainerPool, key: str = KEY) -> int | None:
    """Take the pool for the second job, and return its lock."""
    found = kept.claim(home_of(pool), key, HOSTS)
    if found is None:
        return None
    assert found[0] == pool
    pool.note(SECOND)
    return found[1]


def test_one_job_at_a_time_has_a_pool(made: tuple[ContainerPool, int]) -> None:
    pool, lock = made
    assert pool.in_use and claim(pool) is None, "a job has it"
    pool.keep(FIRST, 60)
    os.close(lock)
    assert pool.in_use and claim(pool, "another") is None
    second = claim(pool)
    assert second is not None and pool.noted() == (SECOND, 0.0)
    assert not pool.await_end(FIRST), "the second job's remover removes it"
    assert claim(pool) is None
    os.close(second)
    assert not pool.in_use


@pytest.mark.leaves("files")
def test_a_pool_stays_the_last_jobs_until_the_next_job_has_a_remover(pool: ContainerPool) -> None:
    found = kept.claim(home_of(pool), KEY, HOSTS)
    assert found is not None and pool.noted()[0] == FIRST
    assert not pool.await_end(SECOND), "the next job's remover has nothing to remove"
    os.close(found[1])  # for example because the supervisor was killed
    pool.note(FIRST, time.time() - 1)
    assert pool.await_end(FIRST)


def test_the_lock_of_a_pool_that_is_claimed_too_late_is_given_back(
    pool: ContainerPool, asyncio_loop: AsyncioLoop
) -> None:
    async def late() -> tuple[ContainerPool, int] | None:
        return kept.claim(home_of(pool), KEY, HOSTS)

    asyncio_loop.run(kept.release(late()))
    second = claim(pool)
    assert second is not None
    os.close(second)


def test_nobody_takes_the_pool_of_a_supervisor_that_was_killed(made: tuple[ContainerPool, int]) -> None:
    pool, lock = made
    os.close(lock)
    assert claim(pool) is None and not pool.in_use


@pytest.mark.leaves("files")  # a remover has the lock until its end
def test_a_pool_has_its_time(made: tuple[ContainerPool, int]) -> None:
    pool, lock = made
    pool.note(FIRST, time.time() - 1)
    os.close(lock)
    assert claim(pool) is None and not pool.in_use
    assert pool.await_end(FIRST)


@pytest.mark.leaves("files")
def test_the_time_of_a_pool_whose_containers_have_ended_is_over(pool: ContainerPool) -> None:
    pool.socket("algo-1").unlink()
    assert claim(pool) is None
    assert pool.await_end(FIRST)


def test_a_pool_that_is_being_made_is_left_to_its_job(made: tuple[ContainerPool, int]) -> None:
    pool, lock = made
    pool.socket("algo-1").unlink()
    assert claim(pool) is None and pool.in_use and pool.noted() == (FIRST, 0.0)
    os.close(lock)


class Removing:
    """An engine that notes what is removed."""

    def __init__(self) -> None:
        self.removed: list[dict[str, str]] = []

    def remove_all(self, labels: dict[str, str]) -> int:
        self.removed.append(labels)
        return 0

    def image(self, name: str) -> ImageFacts:
        return ImageFacts()


@pytest.fixture
def removing(monkeypatch: pytest.MonkeyPatch) -> Removing:
    engine = Removing()
    monkeypatch.setattr(reaper, "Engine", lambda: engine)
    monkeypatch.setattr(reaper, "_QUIET", 0.01)
    monkeypatch.setattr(ownership, "give_back", lambda *arguments: None)
    return engine


@pytest.mark.leaves("files")
def test_what_is_left_of_a_job_is_removed_unless_another_has_its_pool(
    pool: ContainerPool, removing: Removing, tmp_path: Path
) -> None:
    runtime = tmp_path / "runtime"
    duty = {"label": kept.POOL_LABEL, "value": str(pool.path), "runtime": str(runtime)}
    runtime.mkdir()
    second = claim(pool)
    assert second is not None
    assert reaper.remove(job=FIRST, **duty)
    assert not runtime.exists() and pool.path.exists() and not removing.removed, "what was of the first job alone"
    os.close(second)
    assert reaper.remove(job=SECOND, **duty)
    assert removing.removed[0] == {kept.POOL_LABEL: str(pool.path)} and not pool.path.exists()


def test_a_kept_container_that_ends_at_its_start_is_not_waited_for(
    pool: ContainerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_ASK_S", 0.0)
    pool.socket("algo-1").unlink()
    engine = Engine({})
    monkeypatch.setattr(engine, "inspect", lambda container: {"State": {"Running": False}})
    with pytest.raises(EngineError, match="the kept container ended before a job ran in it"):
        kept.start(pool, "algo-1", {}, engine)
