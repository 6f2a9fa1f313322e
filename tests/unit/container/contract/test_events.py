"""Events from within a training process."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from container.contract import events, variables


class Pipe:
    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.variable = f"{self.writing}:{os.fstat(self.writing).st_ino}"

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)

    def lines(self) -> list[bytes]:
        data = bytearray()
        while True:
            try:
                data += os.read(self.reading, 1 << 20)
            except BlockingIOError:
                return bytes(data).split(b"\n")


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    made = Pipe()
    monkeypatch.setenv(variables.EVENTS, made.variable)
    monkeypatch.setattr(events, "WAIT_S", 0.05)
    monkeypatch.setattr(events, "_patient", True)
    monkeypatch.setattr(events, "_torn", False)
    monkeypatch.setattr(events, "_lost", 0)
    yield made
    made.close()


def test_a_line_of_json(pipe: Pipe) -> None:
    assert events.emit("metric", name="loss", value=np.float32(0.5), count=np.int64(3), path=Path("/x"), one=np.ones(1))
    (line, rest) = pipe.lines()
    event = json.loads(line)
    assert rest == b"" and event["kind"] == "metric" and isinstance(event["time_ns"], int)
    assert event["data"] == {"name": "loss", "value": 0.5, "count": 3, "path": "/x", "one": 1.0}
    assert os.get_blocking(pipe.writing)  # as everybody else has it


def test_without_a_pipe_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(variables.EVENTS, raising=False)
    assert not events.emit("metric")
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    status = os.fstat(file)
    other = Pipe()
    for target in (
        "",
        "x",
        "1:x",
        "-1:5",
        "99999:5",
        f"{file}:{status.st_ino}",  # no pipe
        f"{other.writing}:{status.st_ino}",  # another one
        f"{other.reading}:{os.fstat(other.reading).st_ino + 1}",
    ):
        monkeypatch.setenv(variables.EVENTS, target)
        assert not events.emit("metric", value=1), target
    assert os.fstat(file).st_size == 0 and other.lines() == [b""]
    os.close(file)
    other.close()


def test_what_cannot_be_written_raises_nothing(pipe: Pipe) -> None:
    circle: list[object] = []
    circle.append(circle)
    assert not events.emit("metric", value=circle)
    assert not events.emit("metric", value={(1, 2): 3})
    assert events.emit("metric", value=object())
    assert events.emit("metric", text="x" * 100_000)
    assert json.loads(pipe.lines()[1])["data"]["dropped_bytes"] > 100_000


def test_a_toolkit_that_is_gone(pipe: Pipe) -> None:
    os.close(pipe.reading)
    assert not events.emit("metric")
    pipe.reading = os.open(os.devnull, os.O_RDONLY)


def test_a_toolkit_that_takes_nothing_is_waited_for_once(pipe: Pipe) -> None:
    import time

    sent = 0
    while events.emit("metric", number=sent, text="x" * 1000):
        sent += 1
    began = time.monotonic()
    assert not any(events.emit("metric", number=-1, text="y" * 1000) for _ in range(50))
    assert time.monotonic() - began < 2
    lines = pipe.lines()
    # The one that was cut, if any, is the last; what follows begins on a line of its own.
    whole = [json.loads(line)["data"]["number"] for line in lines[:sent]]
    assert whole == list(range(sent))
    assert events.emit("metric", number=1_000_000)
    *_, warning, last, _ = pipe.lines()
    assert json.loads(last)["data"]["number"] == 1_000_000
    assert json.loads(warning)["kind"] == "warning" and "51 reports" in json.loads(warning)["data"]["message"]
    assert events.emit("metric") and len(pipe.lines()) == 2


def test_lines_of_several_threads_stay_whole(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAIT_S", 20)
    threads = [
        threading.Thread(target=lambda: [events.emit("metric", text="z" * 20_000) for _ in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    data = b""
    while any(thread.is_alive() for thread in threads) or len(data) < 80 * 20_000:
        data += b"\n".join(pipe.lines())
        if not any(thread.is_alive() for thread in threads):
            data += b"\n".join(pipe.lines())
            break
    lines = [json.loads(line) for line in data.splitlines()]
    assert len(lines) == 80 and all(line["data"]["text"] == "z" * 20_000 for line in lines)
