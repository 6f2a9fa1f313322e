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

def remove(words, *, place):
    pathlib.Path(place).write_text(words)
    return words == "all"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "removing_values.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "removed"


@pytest.mark.parametrize(("words", "code"), [("all", 0), ("", 1)])
def test_it_removes_when_the_supervisor_says_so_or_is_gone(
    place: Path, asyncio_loop: AsyncioLoop, words: str, code: int
) -> None:
    async def main() -> None:
        protected: set[int] = set()
        remover = Remover(asyncio_loop, protected, "removing_values", "x", {"place": str(place)})
        assert protected == {remover.process.pid} and not place.exists()
        remover.finish(words)
        assert await remover.process.wait() == code
        assert place.read_text() == words and not protected

    asyncio_loop.run(asyncio.wait_for(main(), 20))


def test_another_one_replaces_one_that_is_killed(place: Path, asyncio_loop: AsyncioLoop) -> None:
    async def main() -> None:
        remover = Remover(asyncio_loop, set(), "removing_values", "x", {"place": str(place)})
        first = remover.process
        first.kill()
        while remover.process is first:
            await asyncio.sleep(0.01)
        remover.finish("all")
        assert await remover.process.wait() == 0
        assert place.read_text() == "all"

    asyncio_loop.run(asyncio.wait_for(main(), 20))
