"""Connections: real sockets and pipes, on one loop and off it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from container.contract.messages import MessageError, encode
from container.system.connection import ENDED, BlockingConnection, Connection
from container.system.loop import Loop

RunUntil = Callable[..., None]


@pytest.fixture
def log() -> list[Any]:
    return []


def is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def test_a_pipes_messages_then_its_end(loop: Loop, run_until: RunUntil, log: list[Any]) -> None:
    read_end, write_end = os.pipe()
    Connection(loop, read_end, log.append, log.append)
    os.write(write_end, encode({"op": "a"}) + encode({"op": "b"}) + b'{"op":')
    run_until(lambda: len(log) == 2)
    os.write(write_end, b'"c"}\n{"op":"never whole"')
    os.close(write_end)
    run_until(lambda: len(log) == 4)
    assert log == [{"op": "a"}, {"op": "b"}, {"op": "c"}, ENDED]
    assert is_closed(read_end)


def test_a_pipe_that_brings_garbage_is_closed(loop: Loop, run_until: RunUntil, log: list[Any]) -> None:
    read_end, write_end = os.pipe()
    Connection(loop, read_end, log.append, log.append)
    os.write(write_end, encode({"op": "a"}) + b"stop\n" + encode({"op": "b"}))
    run_until(lambda: len(log) == 2)
    assert log == [{"op": "a"}, "a line of 4 bytes is not a JSON object"]
    os.close(write_end)


def test_a_reader_that_is_closed_while_it_reads_hears_no_more(loop: Loop, run_until: RunUntil, log: list[Any]) -> None:
    read_end, write_end = os.pipe()

    def received(message: dict[str, Any]) -> None:
        log.append(message)
        reader.close()

    reader = Connection(loop, read_end, received, log.append)
    os.write(write_end, encode({"op": "a"}) + encode({"op": "b"}))
    run_until(lambda: log)
    assert log == [{"op": "a"}] and is_closed(read_end)
    os.close(write_end)


def test_descriptors_come_beside_a_message(loop: Loop, run_until: RunUntil, log: list[Any]) -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(loop, ours, log.append, log.append, descriptors=2)
    pipes = os.pipe()
    with BlockingConnection(theirs) as peer:
        peer.send({"op": "first"})
        peer.send({"op": "take"}, descriptors=pipes)
        run_until(lambda: len(log) == 2)
        passed = connection.take_descriptors()
        assert [os.fstat(fd).st_ino for fd in passed] == [os.fstat(fd).st_ino for fd in pipes]
        assert not any(os.get_inheritable(fd) for fd in passed)
        assert connection.take_descriptors() == []
        peer.send({"op": "nobody takes them"}, descriptors=pipes)
        run_until(lambda: len(log) == 3)
        left = list(connection._descriptors)
        connection.close()
        assert len(left) == 2 and all(map(is_closed, left))
    for fd in (*pipes, *passed):
        os.close(fd)


def test_more_descriptors_than_are_wanted_are_refused(loop: Loop, run_until: RunUntil, log: list[Any]) -> None:
    ours, theirs = socket.socketpair()
    Connection(loop, ours, lambda message: None, log.append, descriptors=1)
    before = len(os.listdir("/proc/self/fd"))
    with BlockingConnection(theirs) as peer:
        peer.send({"op": "one"}, descriptors=[0])
        peer.send({"op": "another"}, descriptors=[0])
        run_until(lambda: log)
    assert log == ["it passed more file descriptors than expected"]
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_one_that_waits_for_an_answer(log: list[Any]) -> None:
    ours, theirs = socket.socketpair()
    with BlockingConnection(ours) as connection:
        with pytest.raises(TimeoutError):
            connection.receive(timeout=0.05)
        theirs.sendall(b'{"op":"a"}\n{"op":"b"}\n{"op":"c"')
        assert connection.read()
        assert [connection.take(), connection.take(), connection.take()] == [{"op": "a"}, {"op": "b"}, None]
        theirs.sendall(b"}\n[]\n")
        assert connection.receive(timeout=5) == {"op": "c"}
        with pytest.raises(MessageError):
            connection.receive(timeout=5)
        connection.send({"op": "d"})
        assert json.loads(theirs.recv(100)) == {"op": "d"}
        theirs.close()
        assert connection.receive() is None


def test_one_that_gets_its_answer_in_drops_gives_up_in_time() -> None:
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.01):
            theirs.send(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    with BlockingConnection(ours) as connection:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.receive(timeout=0.2)
        assert time.monotonic() - began < 5
        stop.set()
        thread.join()
    theirs.close()
