"""Objects that several ranks read are read once, and no rank waits for another."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest

from container.agent.pipes.sharing import SharedObjects

PIECES = [bytes([number]) * (number % 7 + 1) * 100 for number in range(50)]
CONTENT = b"".join(PIECES)


class Source:
    """Reads the content, and counts."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.begun = 0
        self.closed = 0
        self.fails_at = fails_at

    def __call__(self) -> Generator[bytes, None, None]:
        self.begun += 1
        try:
            for number, piece in enumerate(PIECES):
                if number == self.fails_at:
                    raise OSError("the connection is gone")
                yield piece
        finally:
            self.closed += 1


def test_readers_in_step_read_once() -> None:
    sharing, source = SharedObjects(3), Source()
    for epoch in range(2):
        readers = [sharing.pieces((epoch, 0), source) for _ in range(3)]
        for together in zip(*readers, strict=True):
            assert len(set(together)) == 1
        assert source.begun == epoch + 1 and source.closed == epoch + 1 and sharing.kept == 0


def test_one_after_another_read_once_while_it_is_kept_and_by_themselves_when_not() -> None:
    for window, times in ((1 << 20, 1), (0, 3), (len(CONTENT) - 1, 3)):
        sharing, source = SharedObjects(3, window), Source()
        assert [b"".join(sharing.pieces((0, 0), source)) for _ in range(3)] == [CONTENT] * 3
        assert source.begun == times and source.closed == times
        assert sharing.kept <= window + 700


def test_one_that_falls_behind_goes_on_alone_and_one_that_leaves_holds_nobody_up() -> None:
    sharing, source = SharedObjects(3, 1000), Source()
    slow, early, quick = (sharing.pieces((0, 0), source) for _ in range(3))
    assert next(slow) == PIECES[0] and next(early) == PIECES[0]
    early.close()  # type: ignore[attr-defined]
    assert b"".join(quick) == CONTENT
    assert sharing.kept <= 1700
    assert PIECES[0] + b"".join(slow) == CONTENT
    assert source.begun == source.closed == 2 and sharing.kept == 0


def test_what_goes_wrong_goes_wrong_for_all() -> None:
    sharing, source = SharedObjects(2), Source(fails_at=5)
    readers = [sharing.pieces((0, 0), source) for _ in range(2)]
    for _ in range(5):
        assert next(readers[0]) == next(readers[1])
    for reader in readers:
        with pytest.raises(OSError, match="gone"):
            next(reader)
    assert source.closed == source.begun


@pytest.mark.parametrize("window", [0, 500, 3000, 1 << 20])
def test_readers_of_any_speed_in_threads_get_every_byte(window: int) -> None:
    chance = random.Random(window)
    sharing, sources = SharedObjects(4, window), [Source() for _ in range(6)]
    pauses = [[chance.random() * 0.001 for _ in PIECES] for _ in range(4)]

    def read(rank: int) -> bytes:
        said = b""
        for number, source in enumerate(sources):
            for piece, pause in zip(sharing.pieces((0, number), source), pauses[rank], strict=False):
                said += piece
                time.sleep(pause)
                if rank == 3 and number == 2 and len(said) % 3 == 0:
                    break  # this one does not want all of it
        return said

    with ThreadPoolExecutor(4) as pool:
        *whole, _ = pool.map(read, range(4))
    assert whole == [CONTENT * 6] * 3
    assert sharing.kept <= window + 700
    assert all(source.begun == source.closed for source in sources)
