"""The process that removes what a job has made elsewhere when its supervisor is over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts.remover import Remover

#: A module that notes what it is told to remove.
MODULE = """
import pathlib

def remove(*, place, works):
    pathlib.Path(place).touch()
    return works
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "removing_values.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "removed"


@pytest.mark.parametrize(("works", "code"), [(True, 0), (False, 1)])
def test_it_removes_when_the_supervisor_lets_go(place: Path, asyncio_loop: AsyncioLoop, works: bool, code: int) -> None:
    async def main() -> None:
        protected: set[int] = set()
        given = {"place": str(place), "works": works}
        remover = Remover(asyncio_loop, protected, "removing_values", "x", given)
        assert protected == {remover.process.pid} and not place.exists()
        remover.finish()
        assert await remover.process.wait() == code
        assert place.exists() and not protected

    asyncio_loop.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("is_noticed", [False, True])
def test_one_that_was_killed_is_replaced_at_once_or_for_the_end(
    place: Path, asyncio_loop: AsyncioLoop, is_noticed: bool
) -> None:
    async def main() -> None:
        remover = Remover(asyncio_loop, set(), "removing_values", "x", {"place": str(place), "works": True})
        first = remover.process
        first.kill()
        while is_noticed and remover.process is first:
            await asyncio.sleep(0.01)
        if not is_noticed:
            await first.wait()
        remover.finish()
        assert remover.process is not first and await remover.process.wait() == 0
        assert place.exists()

    asyncio_loop.run(asyncio.wait_for(main(), 20))
