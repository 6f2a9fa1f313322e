"""File mode: each host's own copies, downloads into the cache, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from s3_server import Bucket, Faults

from container.agent import cache, channels, download, files, progress, sources
from container.agent.retrying import Backoff
from container.agent.s3.stream import S3Stream
from container.contract.channels import DataDistribution, DataType, HostChannel
from container.contract.errors import AgentError
from container.contract.wire import Event, Piece, decode_line
from estimators.client.printing import LogPrinter
from estimators.records.logs import LogLine


class Trees:
    """Hosts' trees, and what preparing them says."""

    def __init__(self, root: Path, hosts: int) -> None:
        self.bases = [root / f"algo-{number}" for number in range(1, hosts + 1)]
        self.lines: list[bytes] = []

    def prepare(self, *wanted: HostChannel) -> None:
        self.lines.clear()
        channels.prepare(self.bases, wanted, tell=self.lines.append)

    def files(self, host: int, channel: str = "train") -> dict[str, bytes]:
        root = self.bases[host] / "input/data" / channel
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    @property
    def warnings(self) -> list[str]:
        events = [item for item in map(decode_line, self.lines) if isinstance(item, Event)]
        return [event.data["message"] for event in events if event.kind == "warning"]

    @property
    def pieces(self) -> list[Piece]:
        return [item for item in map(decode_line, self.lines) if isinstance(item, Piece)]

    @property
    def words(self) -> str:
        return b"".join(piece.data for piece in self.pieces).decode()

    def shown(self, screen: io.StringIO) -> str:
        """What a user sees of it."""
        printer = LogPrinter(screen, colour=False)
        for number, piece in enumerate(self.pieces):
            printer.print([LogLine(number, piece.host, piece.process, 0, piece.data)])
        printer.finish()
        return screen.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path / "hosts", 2)


def content(number: int, size: int = 1000) -> bytes:
    return hashlib.shake_128(str(number).encode()).digest(size)


# --- local sources ---


def seven(folder: Path) -> dict[str, bytes]:
    made = {f"part-{number}": content(number, 10) for number in range(7)}
    for name, data in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return made


def test_a_local_folder_is_dealt_to_hosts(tmp_path: Path) -> None:
    made = seven(tmp_path / "data")
    trees = Trees(tmp_path / "hosts", 3)
    sharded = HostChannel(name="train", uri=str(tmp_path / "data"), distribution=DataDistribution.SHARDED)
    for _ in range(2):  # another attempt makes it again
        trees.prepare(sharded)
    shares = [trees.files(host) for host in range(3)]
    assert [len(part) for part in shares] == [3, 2, 2]
    assert {name: data for part in shares for name, data in part.items()} == made
    assert not any((trees.bases[0] / "input/data/train" / name).is_symlink() for name in shares[0])
    assert trees.warnings == []


def test_fewer_objects_than_hosts_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/only").write_bytes(b"x")
    trees = Trees(tmp_path / "hosts", 3)
    trees.prepare(HostChannel(name="train", uri=str(tmp_path / "data"), distribution=DataDistribution.SHARDED))
    assert [trees.files(host) for host in range(3)] == [{"only": b"x"}, {}, {}]
    (warning,) = trees.warnings
    assert "algo-2, algo-3 get nothing" in warning


def test_a_local_manifest(tmp_path: Path, trees: Trees) -> None:
    made = seven(tmp_path / "data")
    manifest = tmp_path / "train.manifest"
    manifest.write_text(json.dumps([{"prefix": f"{tmp_path}/data/"}, "part-5", "part-1"]))
    trees.prepare(HostChannel(name="train", uri=str(manifest), data_type=DataType.MANIFEST))
    assert trees.files(0) == trees.files(1) == {name: made[name] for name in ("part-1", "part-5")}


# --- S3 ---


def fill(s3: Bucket, count: int = 7, size: int = 1000, prefix: str = "train/") -> dict[str, bytes]:
    made = {f"{number % 2}/part-{number}": content(number, size) for number in range(count)}
    for key, data in made.items():
        s3.put(prefix + key, data)
    return made


def test_a_prefix(s3: Bucket, faults: Faults, trees: Trees) -> None:
    made = fill(s3)
    wanted = HostChannel(name="train", uri=s3.uri("train"))
    trees.prepare(wanted)
    assert trees.files(0) == trees.files(1) == made
    assert len(faults.requests(key="part-")) == 7  # for both hosts
    assert "7 objects, 7.0 kB downloaded" in trees.words
    first, second = (base / "input/data/train/0/part-0" for base in trees.bases)
    first.write_bytes(b"a script's own")  # of its host alone, and not the cache's
    assert second.read_bytes() == made["0/part-0"]
    # The next run asks only what there is.
    faults.seen.clear()
    trees.prepare(wanted)
    assert faults.requests(key="part-") == []
    assert "7.0 kB from the cache" in trees.words
    # What changed is fetched, and nothing else.
    s3.put("train/0/part-0", b"other")
    trees.prepare(wanted)
    assert len(faults.requests(key="part-")) == 1
    assert trees.files(1) == {**made, "0/part-0": b"other"}


def test_the_progress_bar(s3: Bucket, faults: Faults, trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log and on a terminal: it ends at 100 %, and says what was there already."""
    monkeypatch.setattr(progress, "_FIRST_S", 0.0)
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    fill(s3, count=4, size=1_000_000)
    trees.prepare(HostChannel(name="train", uri=s3.uri("train/0/")))
    faults.cut(after=700_000, key="part-1")
    wanted = HostChannel(name="train", uri=s3.uri("train/"))
    trees.prepare(wanted)
    *states, last = trees.shown(io.StringIO()).splitlines()
    assert states[0] == "[algo-1] channel 'train' ░░░░░░░░░░░░░░░░░░░░   0%  0 B of 2.0 MB, 0 B/s"
    assert any("██████████░░░░░░░░░░  50%  1.0 MB of 2.0 MB" in state for state in states)
    assert "████████████████████ 100%  2.0 MB of 2.0 MB" in states[-1]
    full, _, words = last.partition("  ")
    assert full == "[algo-1] channel 'train' ████████████████████ 100%"
    assert words.startswith("4 objects, 2.0 MB downloaded in ") and words.endswith(" s, 2.0 MB from the cache")
    monkeypatch.setenv("COLUMNS", "200")
    drawn = trees.shown(Terminal()).split("\x1b[1A\r\x1b[J")
    assert drawn == [f"{state}\n" for state in (*states, last)]  # each in the place of the one before
    trees.prepare(wanted)
    assert trees.shown(io.StringIO()) == "[algo-1] channel 'train': 4 objects, 4.0 MB from the cache\n"


def test_sharded_by_key(s3: Bucket, trees: Trees) -> None:
    made = fill(s3)
    trees.prepare(HostChannel(name="train", uri=s3.uri("train/"), distribution=DataDistribution.SHARDED))
    one, two = trees.files(0), trees.files(1)
    assert {**one, **two} == made
    assert len(one) == 4 and len(two) == 3


def test_the_deal_follows_the_seed(s3: Bucket, trees: Trees) -> None:
    fill(s3)
    deals = []
    for seed in (None, 1, 2, 1):
        trees.prepare(
            HostChannel(name="train", uri=s3.uri("train/"), distribution=DataDistribution.SHARDED, shuffle_seed=seed)
        )
        deals.append(sorted(trees.files(0)))
    assert deals[1] == deals[3]
    assert deals[0] != deals[1] or deals[1] != deals[2]


def test_one_object_and_what_is_beside(s3: Bucket, trees: Trees) -> None:
    s3.put("x/data.csv", b"one")
    s3.put("x/data-2/more", b"two")
    (s3.folder / "x/folder").mkdir()
    trees.prepare(HostChannel(name="train", uri=s3.uri("x/data.csv")))
    assert trees.files(0) == {"data.csv": b"one"}
    trees.prepare(HostChannel(name="train", uri=s3.uri("x/data")))  # a prefix of keys, as on SageMaker
    assert trees.files(0) == {"data.csv": b"one", "data-2/more": b"two"}


def test_faults_on_the_way_lose_nothing(s3: Bucket, faults: Faults, trees: Trees) -> None:
    made = fill(s3, count=5, size=3_000_000)
    faults.cut(after=100_000, times=4, key="part-")
    faults.unavailable(times=3, key="part-")
    faults.cut(after=0, times=1, key="list-type")
    faults.unavailable(times=1, key="list-type")
    trees.prepare(HostChannel(name="train", uri=s3.uri("train/")))
    assert faults.left == 0
    assert trees.files(0) == made
    ranged = [
        seen.range for seen in faults.requests(key="part-") if seen.range and not seen.range.startswith("bytes=0-")
    ]
    assert ranged  # continued, not begun again


def test_a_silent_server_is_asked_again(
    s3: Bucket, faults: Faults, trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    from container.agent.s3 import client

    monkeypatch.setattr(client, "READ_TIMEOUT", 0.5)
    client.forget()
    made = fill(s3, count=1, size=2_000_000)
    faults.stall(after=500_000, key="part-")
    trees.prepare(HostChannel(name="train", uri=s3.uri("train/")))
    assert trees.files(0) == made
    first, second = (seen.range or "" for seen in faults.requests(key="part-"))
    assert first == "bytes=0-1999999"
    assert 300_000 < int(second.removeprefix("bytes=").partition("-")[0]) <= 500_000


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "answers 503 SlowDown"), (2, "gave an unexpected answer: .*timed out")]
)
def test_an_error_answer_that_does_not_come_whole(
    seconds: float, said: str, s3: Bucket, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes, as the same answer does when it comes whole."""
    from container.agent.s3 import client

    monkeypatch.setattr(client, "READ_TIMEOUT", 0.5)
    client.forget()
    data = content(1, 100_000)
    s3.put("big", data)
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("big")))
    faults.unavailable(times=2, key="big", short=seconds)
    with sources.open(item) as stream:
        assert stream.read(len(data)) == data
    assert faults.left == 0
    faults.unavailable(times=2, key="big", short=seconds)
    with (
        S3Stream(item, backoff=Backoff(attempts=2, first_s=0.01)) as stream,
        pytest.raises(sources.SourceError, match=rf"big' at byte 0: http[^ ]* {said}"),
    ):
        stream.read(10)


def test_a_download_that_was_ended_is_continued(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    data = content(1, 4_000_000)
    s3.put("big", data)
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("big")))
    place = cache.entry(item, tmp_path / "data")
    assert place is not None
    with cache.partial(place) as file:
        assert file is not None
        os.write(file, data[:1_500_000])
    download.download([item], tmp_path / "data")
    assert place.path.read_bytes() == data
    assert [seen.range for seen in faults.requests(key="/big")] == ["bytes=1500000-3999999"]


def test_a_damaged_part_is_begun_again(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    data = content(1, 2_000_000)
    s3.put("big", data)
    faults.corrupt(at=1_000_000, key="big")
    bar = progress.Progress(lambda line: None, "algo-1", "big", len(data))
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("big")))
    download.download([item], tmp_path / "data", bar)
    place = cache.entry(item, tmp_path / "data")
    assert place is not None and place.path.read_bytes() == data
    assert bar._done == len(data)


def test_an_object_that_stays_damaged_is_refused(s3: Bucket, faults: Faults, trees: Trees) -> None:
    fill(s3, count=1)
    faults.corrupt(at=3, times=100, key="part-0")
    with pytest.raises(AgentError, match=r"part-0.*damaged: its MD5 is"):
        trees.prepare(HostChannel(name="train", uri=s3.uri("train/")))


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
    assert len(trees.files(0, "old")) == 4  # a tree keeps what it has
    faults.seen.clear()
    trees.prepare(HostChannel(name="new", uri=s3.uri("new/")))
    assert faults.requests(key="part-") == []  # the older ones went
    monkeypatch.setenv(cache.LIMIT, "much")
    with pytest.raises(AgentError, match="50G"):
        trees.prepare(HostChannel(name="new", uri=s3.uri("new/")))


def test_an_entry_that_was_written_to_is_fetched_again(s3: Bucket, faults: Faults, trees: Trees) -> None:
    made = fill(s3, count=1)
    wanted = HostChannel(name="train", uri=s3.uri("train/"))
    trees.prepare(wanted)
    (path,) = (path for path in cache.folder().glob("*/*") if path.is_file())
    path.chmod(0o644)
    path.write_bytes(b"y" * 1000)
    trees.prepare(wanted)
    assert trees.files(0) == made


def test_an_entry_that_another_job_removes_is_fetched_again(
    s3: Bucket, trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is bounded, and what one job copies another may find to be the oldest."""
    made = fill(s3, count=2)
    copy = files.copy_file
    removed: list[str] = []

    def after_the_other(source: str, target: str, **options: Any) -> None:
        if not removed:
            removed.append(source)
            os.unlink(source)
        copy(source, target, **options)

    monkeypatch.setattr(files, "copy_file", after_the_other)
    trees.prepare(HostChannel(name="train", uri=s3.uri("train/")))
    assert removed and trees.files(0) == trees.files(1) == made


def test_an_object_that_changes_while_it_is_read(s3: Bucket, faults: Faults) -> None:
    s3.put("big", content(1, 2_000_000))
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("big")))
    faults.cut(after=500_000, key="big")
    with sources.open(item) as stream:
        stream.read(200_000)
        s3.put("big", content(2, 2_000_000))
        with pytest.raises(sources.SourceError, match=r"big' at byte 500,000: it changed"):
            stream.read(2_000_000)


def test_an_object_that_vanishes(s3: Bucket, faults: Faults) -> None:
    s3.put("big", content(1, 2_000_000))
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("big")))
    (s3.folder / "big").unlink()
    with sources.open(item) as stream, pytest.raises(sources.SourceError, match=r"big' at byte 0: there is no such"):
        stream.read(10)


def test_a_truncated_answer_is_seen(s3: Bucket, faults: Faults) -> None:
    data = content(1, 2_000_000)
    s3.put("big", data)
    faults.truncate(to=300_000, key="big")
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("big")))
    with sources.open(item) as stream:
        assert stream.read(3_000_000) == data


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_stream_from_an_offset(s3: Bucket, faults: Faults, parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from container.agent.s3 import stream as streams

    monkeypatch.setattr(streams, "PART", 300_000)
    data = content(1, 2_500_000)
    s3.put("big", data)
    (item,) = sources.objects(HostChannel(name="train", uri=s3.uri("big")))
    faults.cut(after=100_000, times=3, key="big")
    faults.unavailable(times=2, key="big")
    got = bytearray()
    buffer = bytearray(70_001)
    with streams.S3Stream(item, 123_456, parallel=parallel) as stream:
        while count := stream.readinto(buffer):
            got += buffer[:count]
        assert stream.position == len(data)
    assert bytes(got) == data[123_456:]


def test_keys_that_cannot_be_files(s3: Bucket, trees: Trees) -> None:
    s3.put("x/a-b/c", b"1")
    s3.put("x/a/a-b/c", b"2")
    with pytest.raises(AgentError, match="would be the same file"):
        trees.prepare(HostChannel(name="train", uri=s3.uri("x/a")))


# --- what is refused ---


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("nothing/", "no object has a key with this prefix"),
        ("trian/", r"Did you mean 's3://.*train'"),
    ],
)
def test_an_empty_prefix(s3: Bucket, trees: Trees, key: str, message: str) -> None:
    fill(s3, count=1)
    with pytest.raises(AgentError, match=message):
        trees.prepare(HostChannel(name="train", uri=s3.uri(key)))


def test_a_wrong_bucket(s3: Bucket, trees: Trees) -> None:
    with pytest.raises(AgentError, match=rf"there is no bucket '{s3.name}x' at .*Did you mean 'bucket-"):
        trees.prepare(HostChannel(name="train", uri=f"s3://{s3.name}x/train"))


def test_wrong_credentials(s3: Bucket, trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    from container.agent.s3 import client

    fill(s3, count=1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    client.forget()
    with pytest.raises(AgentError, match="does not accept the credentials") as caught:
        trees.prepare(HostChannel(name="train", uri=s3.uri("train")))
    assert "wrong-secret" not in str(caught.value)


def test_no_credentials(s3: Bucket, trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    from container.agent.s3 import client

    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    client.forget()
    with pytest.raises(AgentError, match=r"there are no AWS credentials.*AWS_PROFILE"):
        trees.prepare(HostChannel(name="train", uri=s3.uri("train")))


def test_a_server_that_does_not_answer(
    s3: Bucket, faults: Faults, trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    from container.agent import retrying

    monkeypatch.setattr(retrying, "BACKOFF", retrying.Backoff(attempts=2, first_s=0.01))
    faults.unavailable(times=2)
    with pytest.raises(AgentError, match="answers 503 SlowDown"):
        trees.prepare(HostChannel(name="train", uri=s3.uri("train")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"prefix": "PREFIX"},\n"part-0",\n"part-9"\n]', "line 4: .*part-9.*there is no such object"),
        ('[\n{"prefix": "PREFIX"},\n"part-0",,\n]', r"line 3: bad JSON: .*\(column 10\)"),
        ('[\n{"prefix": "PREFIX"}\n"part-0"]', "line 3: bad JSON: ',' or ']' is missing"),
        ('{"prefix": "PREFIX"}', r"line 1: a manifest is a JSON list"),
        ('[{"prefx": "PREFIX"}]', "line 1: the first entry must be"),
        ('[{"prefix": "PREFIX"},\n\n"../part-0"]', "line 3: entry '../part-0' has '.' or '..'"),
        ('[{"prefix": "PREFIX"}, "part-0",\n"part-0"]', "line 2: entry 'part-0' is already listed in line 1"),
        ('[{"prefix": "PREFIX"}]', "lists no objects"),
        ("[]", "it is empty"),
    ],
)
def test_manifests_that_are_wrong(s3: Bucket, trees: Trees, text: str, message: str) -> None:
    s3.put("d/part-0", b"x")
    uri = s3.put("m.manifest", text.replace("PREFIX", s3.uri("d/")).encode())
    with pytest.raises(AgentError, match=message):
        trees.prepare(HostChannel(name="train", uri=uri, data_type=DataType.MANIFEST))


def test_a_manifest(s3: Bucket, trees: Trees) -> None:
    for number in range(3):
        s3.put(f"d/{number}/x", b"%d" % number)
    listed = ["2/x", "0/x"]
    uri = s3.put("m.manifest", json.dumps([{"prefix": s3.uri("d/")}, *listed]).encode())
    wanted = HostChannel(name="train", uri=uri, data_type=DataType.MANIFEST)
    assert [item.key for item in sources.objects(wanted)] == listed
    trees.prepare(wanted)
    assert trees.files(1) == {"0/x": b"0", "2/x": b"2"}
