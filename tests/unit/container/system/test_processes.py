"""What the system says of processes."""

from __future__ import annotations

import signal

import pytest

from container.system import processes


@pytest.mark.parametrize(
    ("status", "means"), [(0, (0, None)), (3 << 8, (3, None)), (signal.SIGKILL, (None, 9)), (0x80 | 11, (None, 11))]
)
def test_statuses(status: int, means: tuple[int | None, int | None]) -> None:
    assert processes.decode_status(status) == means


def test_zero_is_no_process() -> None:
    with pytest.raises(ValueError, match="0 is not a process id"):
        processes.end_tree(-1, 0)
