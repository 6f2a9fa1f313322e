"""``agent pipe`` fed from a real S3 server: not a byte is lost or repeated, whatever happens to the connection."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from pathlib import Path

import pytest
from feeding import agent
from s3_server import Bucket, Faults

from container.agent import sources
from container.agent.pipes.stream import ChannelContents, write_stream
from container.agent.pipes.writing import Pipe
from container.agent.retrying import Backoff
from container.agent.s3 import client
from container.agent.s3 import stream as streams
from container.contract.channels import HostChannel

MIB = 1 << 20


def test_an_epoch_with_faults(tmp_path: Path, s3: Bucket, faults: Faults) -> None:
    """A connection that is cut, a 503, a first byte that comes late, and bytes that dribble."""
    sizes = (7 * MIB + 1, 0, 3 * MIB, 100_000, 5)
    contents = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    for number, content in enumerate(contents):
        s3.put(f"train/{number}", content)
    channels = {"train": {"uri": s3.uri("train/")}}
    with agent(tmp_path / "ml", channels) as host:
        for epoch in range(2):
            faults.cut(after=2 * MIB, key="train/0")
            faults.unavailable(key="train/2")
            faults.delay(0.3, times=1, key="train/2")
            faults.dribble(size=2000, seconds=0.005, key="train/3")
            stream = host.read("train", epoch)
            assert hashlib.sha256(stream).digest() == hashlib.sha256(b"".join(contents)).digest()
            assert faults.left == 0
        assert host.process.poll() is None  # nothing of that is a failure


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is silent for a moment is asked again."""
    monkeypatch.setattr(client, "READ_TIMEOUT", 0.5)
    client.forget()


def test_a_server_that_stands_still(
    tmp_path: Path, s3: Bucket, faults: Faults, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its answer, in mid-object, and again and again: what it sends between its silences counts."""
    content = random.Random(0).randbytes(600_000)
    s3.put("train/0", content)
    contents = ChannelContents.of(HostChannel(name="train", uri=s3.uri("train/")), hosts=1, host=0, failed=pytest.fail)
    faults.delay(60, times=1, key="train/0")
    faults.stall(after=300_000, times=3, key="train/0")
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    with Pipe(os.open(fifo, os.O_WRONLY), tmp_path / "notes") as pipe:
        write_stream(pipe, contents, 0, local_rank=0, ranks=1)
    reader.join()
    assert read == [content]
    assert faults.left == 0
    asked = [str(seen.range) for seen in faults.requests(key="train/0")]
    begins = [int(ranged.removeprefix("bytes=").partition("-")[0]) for ranged in asked]
    assert begins[:2] == [0, 0] and begins == sorted(begins) and begins[-1] > 0  # continued, not begun again
    monkeypatch.setattr(streams, "_READ", 8192)
    s3.put("train/1", content[:9000])
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("train/1")))
    faults.stall(after=5000, times=100, key="train/1")
    monkeypatch.setattr(streams, "BACKOFF", Backoff(first_s=0.01))
    with streams.S3Stream(item) as stream:
        assert stream.read(9000) == content[:9000], "what came was lost"
    faults.clear()
    faults.delay(60, key="train/1")
    monkeypatch.setattr(streams, "BACKOFF", Backoff(attempts=2, first_s=0.01))
    with (
        streams.S3Stream(item) as stream,
        pytest.raises(sources.SourceError, match=r"train/1' at byte 0: .* gave an unexpected answer: Read timeout"),
    ):
        stream.read(9000)


def test_the_first_bytes_do_not_wait_for_the_rest(tmp_path: Path, s3: Bucket, faults: Faults) -> None:
    """However large the channel is: neither for more of the object, nor for other objects, nor for the list's end."""
    content = random.Random(0).randbytes(3 * MIB)
    s3.put("train/0", content)
    for number in range(1001):  # a server lists a thousand at a time
        s3.put(f"train/many/{number:04}", b"")
    rest = faults.hold(key="continuation-token")
    faults.stall(after=2 * MIB, key="train/0")
    with agent(tmp_path / "ml", {"train": {"uri": s3.uri("train/")}}) as host:
        with host.fifo("train", 0).open("rb") as stream:
            assert stream.read(MIB) == content[:MIB]
        asked = {seen.path for seen in faults.requests() if "list-type" not in seen.path}
        assert asked == {f"/{s3.name}/train/0"}
    rest.set()
    many = HostChannel(name="train", uri=s3.uri("train/many/"))
    assert list(sources.in_order(many, pytest.fail)) == list(sources.objects(many))
