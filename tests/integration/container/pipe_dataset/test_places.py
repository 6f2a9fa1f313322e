"""Why a reader no longer waits for its FIFO."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from container.pipe_dataset import PipeError, places

#: The thread waits until the process exits. What was registered first runs last, and so sees the thread's end.
EXITING = """
import atexit, sys, threading
from pathlib import Path
from container.pipe_dataset import leaving, places

def wait():
    try:
        {call}
    except places.PipeError as error:
        print(error)

thread = threading.Thread(target=wait, daemon=True)
atexit.register(thread.join)
leaving.descriptor()
thread.start()
"""
CALLS: dict[str, Callable[[Path], int]] = {
    "places.await_newest(Path(sys.argv[1]), 'train')": lambda folder: places.await_newest(folder, "train", timeout=0),
    "places.open_fifo(Path(sys.argv[1], 'train_0'))": lambda folder: places.open_fifo(folder / "train_0", timeout=0),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_the_error_says_whether_the_time_was_over_or_the_process_has_exited(tmp_path: Path, call: str) -> None:
    with pytest.raises(PipeError, match=r"appear.* within 0 s\."):
        CALLS[call](tmp_path)
    words = [sys.executable, "-c", EXITING.format(call=call), str(tmp_path)]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "before this process began to exit." in said and "within" not in said
