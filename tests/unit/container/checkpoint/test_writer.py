"""The thread that writes: bounds, back-pressure, errors, endings."""

from __future__ import annotations

import io
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from container.checkpoint import Checkpointer, CheckpointWriteError
from container.checkpoint import writer as writers
from container.checkpoint.writer import BackgroundWriter, Target


class Disk(Target[int]):
    """Writes jobs when it is told to."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.written: list[int] = []

    def write(self, job: int) -> None:
        assert self.allowed.acquire(timeout=20)
        if job < 0:
            raise OSError(f"job {job}")
        self.written.append(job)


def put(writer: BackgroundWriter[int], job: int) -> None:
    writer.make_room()
    writer.submit(job)


def in_thread(function, *args):  # type: ignore[no-untyped-def]
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_a_slow_disk_holds_the_training_up_when_the_bound_is_reached() -> None:
    disk = Disk()
    writer = BackgroundWriter(disk, pending=2)
    began = time.monotonic()
    put(writer, 1)
    assert writer.idle
    put(writer, 2)
    assert time.monotonic() - began < 5 and not writer.idle
    third = in_thread(put, writer, 3)
    third.join(0.1)
    assert third.is_alive() and disk.written == []
    disk.allowed.release()
    third.join(20)
    assert not third.is_alive() and disk.written == [1]
    disk.allowed.release(2)
    writer.close()
    assert disk.written == [1, 2, 3]


def test_errors_are_raised_by_the_next_call_once() -> None:
    disk = Disk()
    disk.allowed.release(100)
    writer = BackgroundWriter(disk)
    put(writer, -1)
    with pytest.raises(OSError, match="job -1"):
        writer.wait()
    writer.wait()
    put(writer, -2)
    with pytest.raises(OSError, match="job -2"):
        while True:
            put(writer, 5)
    put(writer, -3)
    with pytest.raises(OSError, match="job -3"):
        writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        put(writer, 1)


def test_an_error_wakes_whoever_waits() -> None:
    disk = Disk()
    writer = BackgroundWriter(disk)
    put(writer, -1)
    seen: list[str] = []

    def waits() -> None:
        try:
            put(writer, 2)
        except OSError as error:
            seen.append(str(error))

    thread = in_thread(waits)
    disk.allowed.release()
    thread.join(20)
    assert seen == ["job -1"]


def test_an_error_is_raised_before_there_is_room() -> None:
    """Two callers have got room before the first job fails, and their jobs then fill the writer."""
    disk = Disk()
    writer = BackgroundWriter(disk, pending=2)
    put(writer, -1)
    writer.make_room()
    writer.make_room()
    writer.submit(2)
    writer.submit(3)
    disk.allowed.release()
    began = time.monotonic()
    with pytest.raises(OSError, match="job -1"):
        writer.make_room()
    assert time.monotonic() - began < 5 and not writer.idle
    disk.allowed.release(2)
    writer.close()
    assert disk.written == [2, 3]


@pytest.mark.parametrize("call", ["wait", "slot", "close"])
def test_whoever_waits_says_so(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_PATIENCE_S", 0.01)
    stderr = io.StringIO()  # pytest's own capture is not read while another thread writes into it
    monkeypatch.setattr(sys, "stderr", stderr)
    disk = Disk()
    writer = BackgroundWriter(disk, where="/the/folder")
    put(writer, 1)
    calls = {"wait": writer.wait, "slot": lambda: put(writer, 2), "close": writer.close}
    thread = in_thread(calls[call])
    said = ""
    while said.count("\n") < 2:
        assert thread.is_alive()
        thread.join(0.01)
        said = stderr.getvalue()
    said = said[: said.rindex("\n")]
    assert all("s so far for the current write to /the/folder to finish" in line for line in said.splitlines()), said
    disk.allowed.release(2)
    thread.join(20)
    assert not thread.is_alive()
    writer.close()
    assert disk.written == ([1, 2] if call == "slot" else [1])


def test_found_to_be_garbage_while_it_writes() -> None:
    """The collector may run in the writer's own thread, which must not wait for itself."""
    ended = threading.Event()

    class Garbage(Target[int]):
        def write(self, job: int) -> None:
            writer.close()

        def close(self) -> None:
            ended.set()

    writer = BackgroundWriter(Garbage())
    put(writer, 1)
    assert ended.wait(20)


# --- a Checkpointer's ---


def test_errors_of_a_checkpointers_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"a": np.zeros(10)}
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(arrays, step=1, wait=True)
    monkeypatch.setattr("os.fsync", _fails)
    checkpointer.save(arrays, step=2)
    with pytest.raises(CheckpointWriteError, match="checkpoint-00000002-step-2 could not be written"):
        checkpointer.wait()
    checkpointer.save(arrays, step=3)
    with pytest.raises(CheckpointWriteError, match="step-3"):
        for _ in range(1000):
            checkpointer.save(arrays, step=4)
    checkpointer.save(arrays, step=5)
    with pytest.raises(CheckpointWriteError, match="step-5"):
        checkpointer.close()
    monkeypatch.undo()
    restored = Checkpointer(tmp_path).restore()
    assert restored is not None and restored.step == 1


def _fails(fd: int) -> None:
    raise OSError(5, "Input/output error")


def test_a_snapshot_is_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    import os

    fsync = os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: (release.wait(20), fsync(fd)))
    arrays = {"a": np.full(100_000, 1)}
    metadata = {"list": [1]}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(arrays, step=1, metadata=metadata)
        arrays["a"][:] = 2
        metadata["list"].append(2)
        assert checkpointer.completed is None and not checkpointer.idle
        release.set()
        checkpointer.wait()
        assert checkpointer.completed is not None and checkpointer.idle
        restored = checkpointer.restore()
    assert restored is not None and (restored.arrays["arrays"]["a"] == 1).all()
    assert restored.metadata == {"list": [1]}


def test_memory_is_bounded(tmp_path: Path) -> None:
    """As many copies as may be pending, used over and over."""
    arrays = {"a": np.zeros(1_000_000)}
    with Checkpointer(tmp_path, pending=2, keep=1) as checkpointer:
        for step in range(1, 8):
            checkpointer.save(arrays, step=step)
        checkpointer.wait()
        assert 1 <= len(checkpointer._free) <= 2
        known = {id(arenas["arrays"]) for arenas in checkpointer._free}
        for step in range(8, 12):
            checkpointer.save(arrays, step=step)
        checkpointer.wait()
        assert {id(arenas["arrays"]) for arenas in checkpointer._free} <= known or len(known) == 1
