"""Asking a supervisor: who answers, who does not, and paths of any length."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from container.contract.messages import encode
from estimators.client import ipc_client
from estimators.client.ipc_client import Tie, request, stop_message
from estimators.job.errors import JobUnreachableError
from estimators.records.record import JobRecord

ANSWER = encode({"op": "answer", "ok": True})


@contextmanager
def server(record: JobRecord, answer: bytes | None) -> Iterator[list[bytes]]:
    """A supervisor's socket that gives one answer to everything; None: it takes connections and says nothing."""
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(record.path, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{folder}/control.sock")
    os.close(folder)
    listener.listen()
    asked: list[bytes] = []
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            if answer is not None:
                asked.append(connection.recv(65536))
                with suppress(BrokenPipeError):
                    for byte in answer:  # an answer may come in pieces
                        connection.send(bytes([byte]))
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for connection in kept:
            connection.close()


@pytest.mark.parametrize("depth", [0, 3])
def test_a_message_is_answered_also_under_long_paths(tmp_path: Path, depth: int) -> None:
    record = JobRecord.create("job-1", tmp_path.joinpath(*["x" * 100] * depth))
    with server(record, ANSWER) as asked:
        assert request(record, stop_message(None, "test")) == {"op": "answer", "ok": True}
    assert json.loads(asked[0]) == {"op": "stop", "grace": None, "reason": "test"}
    record.release()


def test_a_supervisor_that_is_just_starting_is_waited_for(record: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes up between the first time that it is asked and the second."""
    with ExitStack() as stack:
        comes = SimpleNamespace(
            monotonic=time.monotonic, sleep=lambda seconds: stack.enter_context(server(record, ANSWER))
        )
        monkeypatch.setattr(ipc_client, "time", comes)
        assert request(record, {"op": "ping"}) == {"op": "answer", "ok": True}


def test_a_job_without_a_supervisor_is_told_at_once(record: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    record.release()
    monkeypatch.setattr(ipc_client, "_RETRY_SECONDS", -1)  # which sleep() does not take
    with pytest.raises(JobUnreachableError, match=r"no supervisor.*Failed"):
        request(record, {"op": "ping"})


@pytest.mark.parametrize("answer", [None, b"", b"[]\n", b"{}\n", b"nonsense\n", b'{"op":"answer"'])
def test_a_supervisor_that_does_not_answer_is_named(record: JobRecord, answer: bytes | None) -> None:
    with server(record, answer):
        with pytest.raises(JobUnreachableError, match=r"did not answer within 0\.3 s.*supervisor\.log"):
            request(record, {"op": "ping"}, timeout=0.3)


def test_a_tie_wakes_sends_and_ends() -> None:
    ours, theirs = socket.socketpair()
    tie = Tie(ours)
    assert select.select([tie], [], [], 0)[0] == []
    theirs.send(encode({"op": "news"}) * 2)
    assert select.select([tie], [], [], 0)[0] == [tie]
    tie.drain()
    assert select.select([tie], [], [], 0)[0] == [] and not tie.ended
    assert tie.send(stop_message(5.0, "x"))
    assert json.loads(theirs.recv(1000))["grace"] == 5.0
    theirs.send(encode({"op": "news"}))
    theirs.close()
    tie.drain()
    assert tie.ended
    assert tie.send({"op": "ping"}) is False
    tie.close()
    tie.drain()
    assert tie.ended
