"""Frames, links and what is copied over them."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from container.contract.frames import BODY_LIMIT, FrameDecoder, encode
from container.contract.messages import MessageError
from container.system import transfer
from container.system.background import Background
from container.system.link import HostLink
from container.system.loop import Loop
from container.system.transfer import Transfers


@given(
    st.lists(st.tuples(st.dictionaries(st.text(), st.text()), st.binary(max_size=300)), max_size=6),
    st.integers(1, 50),
)
def test_frames_are_found_in_whatever_pieces_they_come(items: list[tuple[dict[str, str], bytes]], step: int) -> None:
    messages = [({**values, "op": "x"}, body) for values, body in items if "size" not in values]
    data = b"".join(encode(message, body) for message, body in messages)
    decoder = FrameDecoder()
    found = [frame for at in range(0, len(data), step) for frame in decoder.feed(data[at : at + step])]
    assert found == messages


@pytest.mark.parametrize(
    "data", [b"\n", b"[]\n", b"{}\n", b'{"op":1}\n', b'{"op":"x","size":-1}\n', b'{"op":"x","size":"4"}\n', b"\xff\n"]
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    decoder = FrameDecoder()
    for received in (data, encode({"op": "x"})):  # nothing is read after an error
        with pytest.raises(MessageError):
            list(decoder.feed(received))
    with pytest.raises(MessageError):
        list(FrameDecoder().feed(b'{"op":"x","size":%d}\n' % (BODY_LIMIT + 1)))


class End:
    """Takes what comes to one end."""

    def __init__(self, ends: Ends, number: int) -> None:
        self._ends = ends
        self._number = number

    def received(self, message: dict[str, object], body: bytes) -> None:
        self._ends.take(self._number, message, body)

    def closed(self, reason: str) -> None:
        self._ends.closed.append(reason)


class Ends:
    """Two links that are connected, on one loop."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop = loop
        self.received: list[list[tuple[dict[str, object], bytes]]] = [[], []]
        self.closed: list[str] = []
        one, other = socket.socketpair()
        self.links = []
        self.transfers: list[Transfers] = []
        background = Background(self.loop)
        for number, sock in enumerate((one, other)):
            fd = sock.detach()
            link = HostLink(self.loop, fd, fd, End(self, number))
            self.links.append(link)
            self.transfers.append(Transfers(link, background, folder))

    def take(self, number: int, message: dict[str, object], body: bytes) -> None:
        if message["op"] == "data":
            self.transfers[number].data(1, body)
        elif message["op"] == "end":
            error = message.get("error")
            self.transfers[number].end(1, None if error is None else str(error))
        else:
            self.received[number].append((message, body))

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, between=lambda: self.loop.run_once(0.5))

    def close(self) -> None:
        for link in self.links:
            link.close()


@pytest.fixture
def ends(loop: Loop, tmp_path: Path) -> Iterator[Ends]:
    made = Ends(loop, tmp_path)
    yield made
    made.close()


def test_folders_arrive_as_they_are_and_messages_do_not_wait_for_them(ends: Ends, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir()
    big = os.urandom(20_000_000)
    (source / "big").write_bytes(big)
    (source / "deep" / "er" / "run").write_text("#!/bin/sh\n")
    (source / "deep" / "er" / "run").chmod(0o755)
    os.utime(source / "big", ns=(10**18 + 123_456_000, 10**18 + 123_456_000))
    (source / "inside").symlink_to("deep/er/run")
    (source / "outside").symlink_to("/etc/passwd")
    os.link(source / "big", source / "same")
    os.mkfifo(source / "fifo")
    done: list[str | None] = []
    ends.transfers[1].expect(1, target, done.append)
    ends.transfers[0].send(1, [(source, "")], follow=False)
    ends.links[1].send({"op": "asked"})
    ends.until(lambda: ends.received[0])
    ends.until(lambda: done)
    assert done == [None]
    assert sorted(os.listdir(target)) == ["big", "deep", "empty", "inside", "same"]
    assert (target / "big").read_bytes() == big == (target / "same").read_bytes()
    assert abs((target / "big").stat().st_mtime_ns - (10**18 + 123_456_000)) < 1_000_000
    assert (target / "deep" / "er" / "run").stat().st_mode & 0o777 == 0o755
    assert os.readlink(target / "inside") == "deep/er/run"


def test_links_are_followed_where_that_is_wanted_and_a_file_goes_by_its_name(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "link").symlink_to(tmp_path / "file")
    done: list[str | None] = []
    ends.transfers[1].expect(1, tmp_path / "target", done.append)
    sources = [(tmp_path / "source", ""), (tmp_path / "file", ""), (tmp_path / "none", "")]
    ends.transfers[0].send(1, sources, follow=True)
    ends.until(lambda: done)
    assert done == [None]
    assert {path.name: path.read_text() for path in (tmp_path / "target").iterdir()} == {"link": "text", "file": "text"}
    assert not (tmp_path / "target" / "link").is_symlink()


def test_what_cannot_be_read_or_written_is_said(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "loop").symlink_to("loop")
    (tmp_path / "there").write_text("a file")
    done: list[str | None] = []
    ends.transfers[1].expect(1, tmp_path / "target", done.append)
    ends.transfers[0].send(1, [(tmp_path / "source", "")], follow=True)
    ends.until(lambda: done)
    assert done[0] is not None and "loop" in done[0]
    ends.transfers[1].expect(1, tmp_path / "there", done.append)
    ends.transfers[0].send(1, [(tmp_path / "there", "x")], follow=True)
    ends.until(lambda: len(done) == 2)
    assert done[1] is not None and "there" in done[1]


def test_an_end_of_the_connection_and_nonsense_are_told_once(ends: Ends) -> None:
    ends.links[0].close()
    ends.until(lambda: ends.closed)
    assert ends.closed == ["the connection was closed"]
    ends.links[1].send({"op": "dropped"})
    one, other = socket.socketpair()
    fd = other.detach()
    link = HostLink(ends.loop, fd, fd, End(ends, 0))
    one.sendall(b"nonsense\n")
    ends.until(lambda: len(ends.closed) == 2)
    assert ends.closed[1] == "a line of 8 bytes is not a JSON object" and not link.open
    one.close()


def test_what_is_being_unpacked_stops_before_its_folder_is_removed(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it makes folders again that are gone."""
    began = threading.Event()

    def unpack(file: IO[bytes], target: Path, **_: object) -> None:
        for number in itertools.count():
            file.seek(0)
            file.read(1)
            (target / str(number)).mkdir(parents=True)
            began.set()

    monkeypatch.setattr(transfer.archive, "extract_file", unpack)
    before = set(threading.enumerate())
    transfers = ends.transfers[0]
    transfers.expect(1, tmp_path / "root" / "target", lambda error: None)
    transfers.data(1, b"x")
    transfers.end(1, None)
    assert began.wait(30)
    transfers.close()
    shutil.rmtree(tmp_path / "root")
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert not (tmp_path / "root").exists()
