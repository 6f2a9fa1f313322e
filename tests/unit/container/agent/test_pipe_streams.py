"""The byte streams of Pipe mode: what each reader of a channel gets."""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feeding import split, write_objects

from container.agent.pipes import serving
from container.agent.pipes.stream import ChannelContents, write_stream
from container.agent.pipes.writing import Pipe
from container.contract import pipes
from container.contract.channels import HostChannel
from container.contract.errors import AgentError
from container.formats import DamagedRecordError, RecordFormat, tfrecord

SHARDED = {"distribution": "ShardedByS3Key"}
WRAPPED = {"record_wrapping": "RecordIO"}

Read = Callable[..., bytes]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Returns a reader's whole stream of an epoch."""

    def run(
        uri: Path, epoch: int = 0, *, rank: int = 0, ranks: int = 1, of: tuple[int, int] = (0, 1), **o: Any
    ) -> bytes:
        channel = HostChannel.from_dict("train", {"uri": str(uri), "mode": "Pipe", **o})
        contents = ChannelContents.of(channel, hosts=of[1], host=of[0], failed=pytest.fail)
        reading, writing = os.pipe()
        with concurrent.futures.ThreadPoolExecutor(1) as pool, open(reading, "rb") as stream:
            came = pool.submit(stream.read)
            with Pipe(writing, tmp_path / "notes") as pipe:
                write_stream(pipe, contents, epoch, local_rank=rank, ranks=ranks)
            return came.result()

    return run


@pytest.mark.parametrize("record_format", list(RecordFormat))
@pytest.mark.parametrize(("hosts", "ranks"), [(2, 2), (1, 3)])
def test_sharding_deals_each_record_once(
    tmp_path: Path, read: Read, record_format: RecordFormat, hosts: int, ranks: int
) -> None:
    """Objects to hosts, then records to ranks; the last line of an object need not end."""
    records = write_objects(tmp_path / "data", [500] * 8 if hosts == 2 else [10, 7, 1, 0, 4, 5, 3], record_format)
    if record_format is RecordFormat.TEXT_LINE:
        last = tmp_path / "data" / "part-02"
        last.write_bytes(last.read_bytes()[:-1])
    for epoch in range(2):
        shares = [
            split(record_format, read(tmp_path / "data", epoch, rank=rank, ranks=ranks, of=(host, hosts), **SHARDED))
            for host in range(hosts)
            for rank in range(ranks)
        ]
        assert {len(share) for share in shares} == {len(records) // hosts // ranks}
        assert sorted(record for share in shares for record in share) == sorted(records)


def test_each_rank_gets_everything_of_a_replicated_channel(tmp_path: Path, read: Read) -> None:
    records = write_objects(tmp_path / "data", [4, 4])
    for rank in range(2):
        assert split(RecordFormat.TFRECORD, read(tmp_path / "data", rank=rank, ranks=2)) == records


def test_lines_of_different_objects_are_not_joined(tmp_path: Path, read: Read) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, text in (("a", b"1\n2"), ("b", b""), ("c", b"3\n"), ("d", b"4"), ("e", b"5")):
        (folder / name).write_bytes(text)
    assert read(folder) == b"1\n2\n3\n4\n5"
    for name in "ab":
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    assert read(folder).count(gzip.compress(b"")[:2]) == 2  # gzip's own bytes are not touched


def test_the_order_is_a_function_of_seed_and_epoch(tmp_path: Path, read: Read) -> None:
    records = write_objects(tmp_path / "data", [1] * 12)
    orders: dict[tuple[int, int], list[bytes]] = {}
    for seed in (1, 1, 2):
        for epoch in range(2):
            order = split(RecordFormat.TFRECORD, read(tmp_path / "data", epoch, shuffle_seed=seed))
            assert sorted(order) == sorted(records)
            assert orders.setdefault((seed, epoch), order) == order
    assert len({tuple(order) for order in orders.values()}) == 4


def test_wrapping_and_unpacking(tmp_path: Path, read: Read) -> None:
    folder, packed = tmp_path / "data", tmp_path / "packed"
    folder.mkdir()
    packed.mkdir()
    contents = [b"a\0picture", b"", os.urandom(3_000_001)]
    for number, content in enumerate(contents):
        (folder / f"{number}").write_bytes(content)
        (packed / f"{number}.gz").write_bytes(gzip.compress(content[:5], 1) + gzip.compress(content[5:], 1))
    assert split(RecordFormat.RECORDIO, read(folder, **WRAPPED)) == contents
    assert read(packed, compression="Gzip") == b"".join(contents)
    assert split(RecordFormat.RECORDIO, read(packed, compression="Gzip", **WRAPPED)) == contents
    for rank in range(2):
        dealt = read(folder, rank=rank, ranks=2, **WRAPPED, **SHARDED)
        assert split(RecordFormat.RECORDIO, dealt) == contents[rank::2]


GOOD = b"".join(tfrecord.encode(b"r%d" % number) for number in range(10, 20))
AT = 4 * len(tfrecord.encode(b"r10"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD[:-1], f"record 10 at byte {len(GOOD) - len(tfrecord.encode(b'r10'))}: it is cut off"),
        (GOOD[:AT] + b"x" + GOOD[AT + 1 :], f"record 5 at byte {AT}: it is not a valid TFRecord"),
        (b"1,2\n", "part-01' is TextLine, but earlier objects are TFRecord"),
        (b"\x89PNG\0", "its format is not TFRecord, RecordIO or text"),
    ],
    ids=["cut off", "damaged", "lines", "picture"],
)
def test_records_that_cannot_be_dealt_are_named(tmp_path: Path, read: Read, content: bytes, words: str) -> None:
    write_objects(tmp_path / "data", [10, 10])
    (tmp_path / "data" / "part-01").write_bytes(content)
    with pytest.raises((AgentError, DamagedRecordError)) as caught:
        read(tmp_path / "data", rank=1, ranks=2, **SHARDED)
    said = str(caught.value)
    assert "channel 'train'" in said and "part-01" in said and words in said.replace(",", "") + said


def test_objects_that_cannot_be_read_are_named(tmp_path: Path, read: Read) -> None:
    with pytest.raises(AgentError, match=f"{tmp_path}/no.*does not exist"):
        read(tmp_path / "no")
    write_objects(tmp_path / "data", [10, 10])
    with pytest.raises(AgentError, match=f"{tmp_path}/data.*every object must be a gzip file"):
        read(tmp_path / "data", compression="Gzip")


def augmented(manifest: Path, *lines: str, **more: Any) -> dict[str, Any]:
    manifest.write_text("".join(f"{line}\n" for line in lines))
    return {"data_type": "AugmentedManifestFile", **WRAPPED, **more}


def test_an_augmented_manifest(tmp_path: Path, read: Read) -> None:
    lines = []
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(b"\x89PNG" + bytes([number]) * number)
        line = {"source-ref": f"file://{tmp_path}/{number}.png", "label": number, "more": "not read"}
        lines.append(json.dumps(line))
    manifest = tmp_path / "all.manifest"
    channel = augmented(manifest, *lines, attribute_names=["source-ref", "label"])
    pairs = [(b"\x89PNG" + bytes([number]) * number, b"%d" % number) for number in range(6)]
    assert split(RecordFormat.RECORDIO, read(manifest, **channel)) == [part for pair in pairs for part in pair]
    orders = [split(RecordFormat.RECORDIO, read(manifest, epoch, shuffle_seed=3, **channel)) for epoch in range(2)]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(zip(order[::2], order[1::2], strict=True)) == sorted(pairs)
    channel = augmented(manifest, '{"label": 1}', "nonsense", attribute_names=["label"])
    with pytest.raises(AgentError, match="line 2: bad JSON"):
        read(manifest, **channel)


def test_a_wish_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert pipes.take_asked(tmp_path, "train", 3) == 3
    with pytest.raises(NotADirectoryError):
        pipes.take_asked(tmp_path / "file", "train", 3)


def test_a_wrong_command_line() -> None:
    for words in (["--base-dir"], ["--shards", "2"], ["--base-dir", "x"]):
        assert serving.main(words) == 2, words
