"""``agent pipe`` fed from a real S3 server: not a byte is lost or repeated, whatever happens to the connection."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from pathlib import Path

import pytest
from feeding import agent, split
from s3_server import Bucket, Faults

from container.agent import sources
from container.agent.pipes.stream import Contents, write_stream
from container.agent.pipes.writing import Pipe
from container.agent.retrying import Backoff
from container.agent.s3 import client
from container.agent.s3 import stream as streams
from container.contract.channels import HostChannel
from container.formats import RecordFormat, tfrecord

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


def test_a_server_that_stands_still(tmp_path: Path, s3: Bucket, faults: Faults, impatient: None) -> None:
    """Before its answer, and in mid-object: it is asked for the rest."""
    content = random.Random(0).randbytes(600_000)
    s3.put("train/0", content)
    contents = Contents.of(HostChannel(name="train", uri=s3.uri("train/")), hosts=1, host=0, failed=pytest.fail)
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


def test_a_server_that_stands_still_again_and_again(
    s3: Bucket, faults: Faults, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sends between its silences counts; where it sends nothing any more, the object and the byte are named."""
    monkeypatch.setattr(streams, "_READ", 8192)
    content = random.Random(0).randbytes(9000)
    s3.put("train/0", content)
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("train/0")))
    faults.stall(after=5000, times=100, key="train/0")
    with streams.S3Stream(item, backoff=Backoff(first_s=0.01)) as stream:
        assert stream.read(len(content)) == content
    faults.clear()
    faults.delay(60, key="train/0")
    with (
        streams.S3Stream(item, backoff=Backoff(attempts=2, first_s=0.01)) as stream,
        pytest.raises(sources.SourceError, match=r"train/0' at byte 0: .* gave an unexpected answer: Read timeout"),
    ):
        stream.read(len(content))


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


def test_records_are_dealt_with_faults(tmp_path: Path, s3: Bucket, faults: Faults) -> None:
    records = [b"%07d" % number * 30 for number in range(20_000)]
    for part in range(2):
        s3.put(f"train/{part}", b"".join(map(tfrecord.encode, records[part * 10_000 : (part + 1) * 10_000])))
    channels = {"train": {"uri": s3.uri("train/"), "distribution": "ShardedByS3Key"}}
    with agent(tmp_path / "ml", channels, ranks=2) as host:
        faults.cut(after=MIB)
        found = [split(RecordFormat.TFRECORD, host.read("train", 0, rank)) for rank in range(2)]
    assert [len(of_rank) for of_rank in found] == [10_000, 10_000]
    assert sorted(found[0] + found[1]) == records


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_an_object_that_is_not_what_it_was(tmp_path: Path, s3: Bucket, change: str) -> None:
    s3.put("train/0", b"x" * 100)
    s3.put("train/1", b"y" * 100)
    with agent(tmp_path / "ml", {"train": {"uri": s3.uri("train/")}}) as host:
        fifo = host.fifo("train", 0)
        if change == "deleted":
            s3.client.delete_object(Bucket=s3.name, Key="train/1")
        else:
            s3.put("train/1", b"z" * 100)
        fifo.read_bytes()
        code, said = host.ended()
    assert code == 1 and s3.uri("train/1") in said, said
