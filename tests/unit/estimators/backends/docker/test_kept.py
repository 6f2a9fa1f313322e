"""What becomes of a pool of kept containers: the job that creates it, and the remover that waits for its end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from container.system import locks
from estimators.backends.docker import kept, ownership, reaper
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.kept import ContainerPool
from estimators.backends.docker.options import ContainerOptions
from estimators.backends.images.engine import ImageFacts
from estimators.backends.images.errors import EngineError

KEY = "0123456789abcdef"


class Engine:
    """An engine with containers in the given states, one state for each time that it is asked."""

    def __init__(self, *states: list[str]) -> None:
        self.states = [*states]
        self.removed: list[dict[str, str]] = []

    def leftovers(self, labels: dict[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        if not self.states:
            raise EngineError("it does not answer")
        return [{"State": state} for state in self.states.pop(0)], []

    def remove_all(self, labels: dict[str, str]) -> int:
        self.removed.append(labels)
        return 0

    def image(self, name: str) -> ImageFacts:
        return ImageFacts()

    def create_network(self, name: str, labels: dict[str, str], *, internal: bool) -> None: ...

    def create(self, plan: ContainerPlan) -> str:
        return plan.name

    def start(self, container: str, plan: ContainerPlan) -> None: ...

    def is_running(self, container: str) -> bool:
        return False


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(reaper, "Engine", lambda: made)
    monkeypatch.setattr(reaper, "_QUIET", 0.01)
    monkeypatch.setattr(kept, "_ASK_S", 0.0)
    monkeypatch.setattr(kept, "_SILENT_S", 0.01)
    monkeypatch.setattr(ownership, "give_back", lambda *arguments: None)
    return made


@pytest.fixture
def pool(tmp_path: Path) -> ContainerPool:
    """A pool with a folder."""
    made = kept.new(tmp_path, KEY)
    made.path.mkdir(parents=True)
    return made


def test_a_pool_that_is_being_made_is_left_to_its_job(tmp_path: Path) -> None:
    pool, job = kept.new(tmp_path, KEY), tmp_path / "jobs" / "one"
    pool.path.mkdir(parents=True)
    job.mkdir(parents=True)
    (pool.path / "job").write_text(str(job))
    assert not pool.in_use and kept.find(tmp_path, KEY, ["algo-1"]) is None
    lock = locks.take(job / "lock")
    assert lock is not None and pool.in_use
    os.close(lock)
    assert not pool.in_use


@pytest.mark.leaves("files")  # a remover has the lock until its end
def test_one_remover_waits_for_the_end_of_a_pool(pool: ContainerPool, engine: Engine, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    duty = {"label": kept.POOL_LABEL, "value": str(pool.path), "runtime": str(runtime)}
    engine.states = [["running", "paused"], ["running", "exited"], ["exited", "exited"]]
    assert reaper.remove(**duty)
    assert not engine.states, "it has waited until all containers have ended"
    assert engine.removed[0] == {kept.POOL_LABEL: str(pool.path)} and not pool.path.exists() and not runtime.exists()


@pytest.mark.leaves("files")
def test_the_remover_of_a_later_job_leaves_the_pool_to_the_first(
    pool: ContainerPool, engine: Engine, tmp_path: Path
) -> None:
    first = locks.take(pool.path / "remover")
    assert first is not None
    assert reaper.remove(label=kept.POOL_LABEL, value=str(pool.path), runtime=str(tmp_path / "removed"))
    assert pool.path.exists() and not engine.removed


@pytest.mark.leaves("files")
def test_the_files_of_a_later_job_are_given_back_if_its_supervisor_was_killed(
    pool: ContainerPool, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runtime := tmp_path / "runtime").mkdir()  # the supervisor would have removed it
    first = locks.take(pool.path / "remover")
    assert first is not None
    given: list[str] = []
    real_take = locks.take

    def take(path: Path) -> int | None:
        """The first remover has the lock, and ends when the second has asked once."""
        taken = real_take(path)
        if taken is None:
            os.close(first)
        return taken

    monkeypatch.setattr(locks, "take", take)
    monkeypatch.setattr(ownership, "give_back", lambda engine, duty, user: given.append(duty.value))
    engine.states = [["exited"]]
    assert reaper.remove(label=kept.POOL_LABEL, value=str(pool.path), runtime=str(runtime))
    assert given == [str(pool.path)] and not runtime.exists()


@pytest.mark.leaves("files")
@pytest.mark.parametrize("states", [[], [[]], [["created"]]])
def test_a_pool_that_was_never_complete_is_removed(
    pool: ContainerPool, engine: Engine, states: list[list[str]]
) -> None:
    """Also if the engine does not say how its containers are: then the removal says that the engine does not answer."""
    engine.states = states
    assert reaper.remove(label=kept.POOL_LABEL, value=str(pool.path))
    assert engine.removed and not pool.path.exists()


def test_a_kept_container_that_ends_at_its_start_is_not_waited_for(tmp_path: Path, engine: Engine) -> None:
    plan = ContainerPlan(host="algo-1", name="", image="image", limits=ContainerOptions())
    began = time.monotonic()
    with pytest.raises(EngineError, match="a kept container ended before a job ran in it"):
        kept.new(tmp_path, KEY).make([plan], engine, tmp_path, isolated=False)  # type: ignore[arg-type]
    assert time.monotonic() - began < kept._START_S
