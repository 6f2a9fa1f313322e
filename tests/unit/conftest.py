"""Unit tests start no process: what does belongs to another tier."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
_PID = os.getpid()
_watching = False


def _watch(event: str, args: tuple[object, ...]) -> None:
    if _watching and event in _STARTS and os.getpid() == _PID:
        raise AssertionError(f"a unit test starts a process ({event}{args[:2]}): it belongs to tests/integration")


sys.addaudithook(_watch)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Unit tests are part of the landing set."""
    item.add_marker(pytest.mark.landing)


@pytest.fixture(autouse=True)
def no_process() -> Iterator[None]:
    """Fail whatever starts a process."""
    global _watching
    _watching = True
    yield
    _watching = False
