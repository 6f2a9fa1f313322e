"""File mode from a real S3 server: downloads into the cache, faults on the way, and what is refused."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from host_trees import Trees, content
from s3_server import Bucket, Faults

from container.agent import cache, download, files, progress, retrying, sources
from container.agent.retrying import Backoff
from container.agent.s3 import client
from container.agent.s3 import stream as streams
from container.agent.s3.stream import S3Stream
from container.contract.channels import DataType, HostChannel
from container.contract.errors import AgentError


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path / "hosts", 2)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    """A server that is silent for a moment is asked again."""
    monkeypatch.setattr(client, "READ_TIMEOUT", 0.5)
    client.forget()


def fill(s3: Bucket, count: int = 7, size: int = 1000, prefix: str = "train/") -> dict[str, bytes]:
    made = {f"{number % 2}/part-{number}": content(number, size) for number in range(count)}
    for key, data in made.items():
        s3.put(prefix + key, data)
    return made


def one_object(s3: Bucket, data: bytes) -> sources.DataObject:
    (item,) = sources.objects(HostChannel(name="train", uri=s3.put("big", data)))
    return item


@pytest.mark.landing
def test_a_prefix(s3: Bucket, faults: Faults, trees: Trees) -> None:
    made = fill(s3)
    wanted = HostChannel(name="train", uri=s3.uri("train"))
    trees.prepare(wanted)
    assert trees.files(0) == trees.files(1) == made
    assert len(faults.requests(key="part-")) == 7, "not once for both hosts"
    assert "7 objects, 7.0 kB downloaded" in trees.words
    first, second = (base / "input/data/train/0/part-0" for base in trees.bases)
    first.write_bytes(b"a script's own")
    assert second.read_bytes() == made["0/part-0"], "a host's files are not its own"
    faults.seen.clear()
    trees.prepare(wanted)
    assert faults.requests(key="part-") == [], "the next run reads again what has not changed"
    assert "7.0 kB from the cache" in trees.words
    s3.put("train/0/part-0", b"other")
    trees.prepare(wanted)
    assert len(faults.requests(key="part-")) == 1, "not only what has changed is read again"
    assert trees.files(1) == {**made, "0/part-0": b"other"}
    assert "7 objects, 5 B downloaded" in trees.words and "6.0 kB from the cache" in trees.words


def test_an_object_a_prefix_of_keys_and_a_manifest(s3: Bucket, trees: Trees) -> None:
    s3.put("x/data.csv", b"one")
    s3.put("x/data-2/more", b"two")
    (s3.folder / "x/folder").mkdir()
    trees.prepare(HostChannel(name="train", uri=s3.uri("x/data.csv")))
    assert trees.files(0) == {"data.csv": b"one"}
    trees.prepare(HostChannel(name="train", uri=s3.uri("x/data")))  # as on SageMaker
    assert trees.files(0) == {"data.csv": b"one", "data-2/more": b"two"}
    listed = ["data-2/more", "data.csv"]
    uri = s3.put("m.manifest", json.dumps([{"prefix": s3.uri("x/")}, *listed]).encode())
    wanted = HostChannel(name="train", uri=uri, data_type=DataType.MANIFEST)
    assert [item.key for item in sources.objects(wanted)] == listed
    trees.prepare(wanted)
    assert trees.files(1) == {"data.csv": b"one", "data-2/more": b"two"}


def test_faults_on_the_way_lose_nothing(s3: Bucket, faults: Faults, trees: Trees, impatient: None) -> None:
    """Connections that are cut, a server that refuses, is silent, or answers with less than it says."""
    made = fill(s3, count=5, size=3_000_000)
    faults.cut(after=100_000, times=4, key="part-")
    faults.unavailable(times=3, key="part-")
    faults.cut(after=0, times=1, key="list-type")
    faults.unavailable(times=1, key="list-type")
    faults.stall(after=500_000, key="part-3")
    faults.truncate(to=300_000, key="part-4")
    trees.prepare(HostChannel(name="train", uri=s3.uri("train/")))
    assert faults.left == 0
    assert trees.files(0) == made
    asked = [seen.range for seen in faults.requests(key="part-") if seen.range]
    assert [ranged for ranged in asked if not ranged.startswith("bytes=0-")], "all were begun again"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "answers 503 SlowDown"), (2, "gave an unexpected answer: .*timed out")]
)
def test_an_error_answer_that_does_not_come_whole(
    seconds: float, said: str, s3: Bucket, faults: Faults, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes, as the same answer does when it comes whole."""
    data = content(1, 100_000)
    item = one_object(s3, data)
    faults.unavailable(times=2, key="big", short=seconds)
    with sources.open(item) as stream:
        assert stream.read(len(data)) == data
    assert faults.left == 0
    faults.unavailable(times=2, key="big", short=seconds)
    monkeypatch.setattr(streams, "BACKOFF", Backoff(attempts=2, first_s=0.01))
    with (
        S3Stream(item) as stream,
        pytest.raises(sources.SourceError, match=rf"big' at byte 0: http[^ ]* {said}"),
    ):
        stream.read(10)


def test_a_download_goes_on_and_is_whole_or_refused(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    data = content(1, 2_000_000)
    s3.client.put_object(Bucket=s3.name, Key="big", Body=data)  # so that its MD5 is known
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("big")))
    place = cache.entry(item, tmp_path / "data")
    assert place is not None
    with cache.partial(place) as file:
        assert file is not None
        os.write(file, data[:1_500_000])
    download.download([item], tmp_path / "data")
    assert place.path.read_bytes() == data
    assert [seen.range for seen in faults.requests(key="/big")] == ["bytes=1500000-1999999"], "it was begun again"
    bar = progress.ProgressBar(lambda line: None, "algo-1", "big", len(data))
    faults.corrupt(at=1_000_000, key="big")
    download.download([item], tmp_path / "more", bar)
    place = cache.entry(item, tmp_path / "more")
    assert place is not None and place.path.read_bytes() == data, "a damaged part was kept"
    assert bar._done == len(data), "progress counts what was thrown away"
    faults.corrupt(at=3, times=100, key="big")
    with pytest.raises(AgentError, match=r"big.*damaged: its MD5 is"):
        download.download([item], tmp_path / "again")


def test_two_jobs_download_once(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    made = fill(s3, count=3, size=500_000)
    faults.delay(0.1, key="part-")
    many = [Trees(tmp_path / f"job-{number}", 1) for number in range(3)]
    threads = [
        threading.Thread(target=one.prepare, args=(HostChannel(name="train", uri=s3.uri("train/")),)) for one in many
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one.files(0) == made for one in many)
    assert len(faults.requests(key="part-")) == 3


def test_the_cache_is_bounded(s3: Bucket, faults: Faults, trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(s3, count=4, size=1000, prefix="old/")
    fill(s3, count=4, size=1000, prefix="new/")
    trees.prepare(HostChannel(name="old", uri=s3.uri("old/")))
    monkeypatch.setenv(cache.LIMIT, "5K")
    trees.prepare(HostChannel(name="new", uri=s3.uri("new/")))
    kept = [path for path in cache.folder().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) <= 5 << 10
    assert len(trees.files(0, "old")) == 4, "a tree has lost what it had"
    faults.seen.clear()
    trees.prepare(HostChannel(name="new", uri=s3.uri("new/")))
    assert faults.requests(key="part-") == [], "the newer ones went"
    monkeypatch.setenv(cache.LIMIT, "much")
    with pytest.raises(AgentError, match="50G"):
        trees.prepare(HostChannel(name="new", uri=s3.uri("new/")))


def test_an_entry_that_is_damaged_or_removed_is_fetched_again(
    s3: Bucket, trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is bounded: another job may remove what this one copies, as the oldest."""
    made = fill(s3, count=2)
    wanted = HostChannel(name="train", uri=s3.uri("train/"))
    trees.prepare(wanted)
    path = next(path for path in cache.folder().glob("*/*") if path.is_file())
    path.chmod(0o644)
    path.write_bytes(b"y" * 1000)
    trees.prepare(wanted)
    assert trees.files(0) == made, "a damaged entry was used"
    copy = files.copy_file
    removed: list[str] = []

    def after_the_other(source: str, target: str, **options: Any) -> None:
        if not removed:
            removed.append(source)
            os.unlink(source)
        copy(source, target, **options)

    monkeypatch.setattr(files, "copy_file", after_the_other)
    trees.prepare(wanted)
    assert removed and trees.files(0) == trees.files(1) == made, "a removed entry is missing"


def test_an_object_that_changes_or_vanishes_while_it_is_read(s3: Bucket, faults: Faults) -> None:
    item = one_object(s3, content(1, 2_000_000))
    faults.cut(after=500_000, key="big")
    with sources.open(item) as stream:
        stream.read(200_000)
        s3.put("big", content(2, 2_000_000))
        with pytest.raises(sources.SourceError, match=r"big' at byte 500,000: it changed"):
            stream.read(2_000_000)
    (s3.folder / "big").unlink()
    with sources.open(item) as stream, pytest.raises(sources.SourceError, match=r"big' at byte 0: there is no such"):
        stream.read(10)


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_stream_from_an_offset(s3: Bucket, faults: Faults, parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PART", 300_000)
    monkeypatch.setenv(streams.CONNECTIONS, str(parallel))
    data = content(1, 2_500_000)
    item = one_object(s3, data)
    faults.cut(after=100_000, times=3, key="big")
    faults.unavailable(times=2, key="big")
    got = bytearray()
    buffer = bytearray(70_001)
    with streams.S3Stream(item, 123_456) as stream:
        while count := stream.readinto(buffer):
            got += buffer[:count]
        assert stream.position == len(data)
    assert bytes(got) == data[123_456:]


def test_what_is_refused(s3: Bucket, faults: Faults, trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a real server answers; the words of each answer are tested in the unit tier."""
    fill(s3, count=1)
    lost = s3.put("m", b'[\n{"prefix": "%b"},\n"0/part-0",\n"0/part-9"\n]' % s3.uri("train/").encode())

    def refused(uri: str, words: str, **more: Any) -> str:
        with pytest.raises(AgentError, match=words) as caught:
            trees.prepare(HostChannel(name="train", uri=uri, **more))
        return str(caught.value)

    refused(s3.uri("nothing/"), "no object has a key with this prefix")
    refused(s3.uri("trian/"), r"Did you mean 's3://.*train'")
    refused(lost, "line 4: .*part-9.*there is no such object", data_type=DataType.MANIFEST)
    refused(f"s3://{s3.name}x/train", rf"there is no bucket '{s3.name}x' at .*Did you mean 'bucket-")
    with monkeypatch.context() as patch:
        patch.setattr(retrying, "BACKOFF", retrying.Backoff(attempts=2, first_s=0.01))
        faults.unavailable(times=2)
        refused(s3.uri("train"), "answers 503 SlowDown")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    client.forget()
    assert "wrong-secret" not in refused(s3.uri("train"), "does not accept the credentials")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    client.forget()
    refused(s3.uri("train"), "there are no AWS credentials.*AWS_PROFILE")
