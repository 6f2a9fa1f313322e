"""``agent pipe`` fed from a real S3 server: not a byte is lost or repeated, whatever happens to the connection."""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

import pytest
from s3_server import Bucket, Faults

sys.path.append(str(Path(__file__).parents[1] / "pipes"))  # at the end: it hides nothing

from feeding import agent, split

from container.formats import RecordFormat, tfrecord

MIB = 1 << 20


def test_an_epoch_with_faults(tmp_path: Path, s3: Bucket, faults: Faults) -> None:
    contents = [random.Random(number).randbytes(size) for number, size in enumerate((7 * MIB + 1, 0, 3 * MIB, 5))]
    for number, content in enumerate(contents):
        s3.put(f"train/{number}", content)
    channels = {"train": {"uri": s3.uri("train/")}}
    with agent(tmp_path / "ml", channels) as host:
        for epoch in range(2):
            faults.cut(after=2 * MIB, key="train/0")
            faults.unavailable(key="train/2")
            stream = host.read("train", epoch)
            assert hashlib.sha256(stream).digest() == hashlib.sha256(b"".join(contents)).digest()
            assert faults.left == 0


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
