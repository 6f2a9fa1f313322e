"""File and FastFile mode: whose objects are whose, what a manifest means, what is shown, and what is refused."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, NoCredentialsError
from host_trees import Trees, content, shown

from container.agent import cache, download, files, mounting, preflight, progress, retrying
from container.agent.s3 import client, stream
from container.agent.sources.base import DataObject, SourceError
from container.agent.sources.manifests import ListingError, parse_augmented, parse_manifest
from container.contract.channels import DataDistribution, DataType, HostChannel, InputMode
from container.contract.errors import AgentError


@pytest.fixture
def data(tmp_path: Path) -> dict[str, bytes]:
    """Seven objects."""
    made = {f"part-{number}": content(number, 10) for number in range(7)}
    (tmp_path / "data").mkdir()
    for name, text in made.items():
        (tmp_path / "data" / name).write_bytes(text)
    return made


def test_a_folder_is_dealt_to_hosts(tmp_path: Path, data: dict[str, bytes]) -> None:
    trees = Trees(tmp_path / "hosts", 3)
    sharded = HostChannel(name="train", uri=str(tmp_path / "data"), distribution=DataDistribution.SHARDED)
    for _ in range(2):  # another attempt makes it again
        trees.prepare(sharded)
    shares = [trees.files(host) for host in range(3)]
    assert [len(part) for part in shares] == [3, 2, 2]
    assert {name: text for part in shares for name, text in part.items()} == data
    assert not any((trees.bases[0] / "input/data/train" / name).is_symlink() for name in shares[0])
    assert trees.warnings == []


def test_fewer_objects_than_hosts_is_said(tmp_path: Path) -> None:
    (tmp_path / "only").write_bytes(b"x")
    trees = Trees(tmp_path / "hosts", 3)
    trees.prepare(HostChannel(name="train", uri=str(tmp_path / "only"), distribution=DataDistribution.SHARDED))
    assert [trees.files(host) for host in range(3)] == [{"only": b"x"}, {}, {}]
    (warning,) = trees.warnings
    assert "algo-2, algo-3 get nothing" in warning


def test_the_deal_follows_the_seed() -> None:
    items = [DataObject(f"s3://b/{number}", number, None) for number in range(7)]

    def first(seed: int | None) -> tuple[DataObject, ...]:
        sharded = DataDistribution.SHARDED
        one, two = files.share(HostChannel(name="t", uri="s3://b", distribution=sharded, shuffle_seed=seed), items, 2)
        assert sorted((*one, *two), key=lambda item: item.size) == items and len(one) == 4
        return one

    assert first(1) == first(1)
    assert len({first(seed) for seed in (None, 1, 2)}) > 1


def test_local_files_of_fast_file_mode_are_linked(tmp_path: Path, data: dict[str, bytes]) -> None:
    trees = Trees(tmp_path / "hosts", 1)
    trees.prepare(HostChannel(name="train", uri=str(tmp_path / "data"), mode=InputMode.FAST_FILE))
    assert (trees.bases[0] / "input/data/train").is_symlink() and trees.files(0) == data


@pytest.mark.parametrize("mode", [InputMode.FILE, InputMode.FAST_FILE])
def test_a_linked_file_keeps_the_name_of_its_link(tmp_path: Path, mode: InputMode) -> None:
    (tmp_path / "ab12cd").write_bytes(b"x")
    (tmp_path / "train.csv").symlink_to("ab12cd")
    trees = Trees(tmp_path / "hosts", 1)
    for uri in (f"{tmp_path}/train.csv", f"file://{tmp_path}/train.csv"):
        trees.prepare(HostChannel(name="train", uri=uri, mode=mode))
        assert trees.files(0) == {"train.csv": b"x"}


def test_a_folder_without_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "data/empty").mkdir(parents=True)
    trees = Trees(tmp_path / "hosts", 2)
    trees.prepare(HostChannel(name="train", uri=str(tmp_path / "data")))
    (warning,) = trees.warnings
    assert f"channel 'train': '{tmp_path}/data' has no files" in warning
    sharded = HostChannel(name="train", uri=str(tmp_path / "data"), distribution=DataDistribution.SHARDED)
    with pytest.raises(AgentError, match="the folder has no files"):
        trees.prepare(sharded)


def test_a_manifest(tmp_path: Path, data: dict[str, bytes]) -> None:
    manifest = tmp_path / "train.manifest"
    manifest.write_text(json.dumps([{"prefix": f"{tmp_path}/data/"}, "part-5", "part-1"]))
    trees = Trees(tmp_path / "hosts", 2)
    trees.prepare(HostChannel(name="train", uri=str(manifest), data_type=DataType.MANIFEST))
    assert trees.files(0) == trees.files(1) == {name: data[name] for name in ("part-1", "part-5")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"prefix": "s3://b/"},\n"part-0",,\n]', r"line 3: bad JSON: .*\(column 10\)"),
        ('[\n{"prefix": "s3://b/"}\n"part-0"]', "line 3: bad JSON: ',' or ']' is missing"),
        ('{"prefix": "s3://b/"}', r"line 1: a manifest is a JSON list"),
        ('[{"prefx": "s3://b/"}]', "line 1: the first entry must be"),
        ('[{"prefix": "s3://b/"},\n\n"../part-0"]', "line 3: entry '../part-0' has '.' or '..'"),
        ('[{"prefix": "s3://b/"}, "part-0",\n"part-0"]', "line 2: entry 'part-0' is already listed in line 1"),
        ('[{"prefix": "s3://b/"}]', "lists no objects"),
        ("[]", "it is empty"),
        ('[{"prefix": "s3://b/"},\n"cut \\ud83d"]', "line 2: entry .* half of a surrogate pair"),
        (f'[{{"prefix": "s3://b/"}}, {"9" * 5000}]', r"line 1: bad JSON: .* a number has too many digits"),
    ],
)
def test_manifests_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(ListingError, match=message):
        parse_manifest(text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (r'"an emoji cut in two: \ud83d"', "line 2: attribute 'text' has half of a surrogate pair"),
        (r'["\udcff"]', "line 2: attribute 'text' has half of a surrogate pair"),
        ("9" * 5000, r"line 2: bad JSON: .* a number has too many digits"),
    ],
)
def test_augmented_manifests_that_are_wrong(value: str, message: str) -> None:
    entries = parse_augmented(iter(['{"text": "\\ud83d\\ude00"}', f'{{"text": {value}}}']), ["text"])
    assert next(entries).attributes[0].value == "\N{GRINNING FACE}".encode()
    with pytest.raises(ListingError, match=message):
        next(entries)


def test_wrong_variables_are_named_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = HostChannel(name="train", uri="s3://b/train")
    monkeypatch.setenv(stream.CONNECTIONS, "many")
    with pytest.raises(AgentError, match=r"channel 'train': .*CONNECTIONS='many' is not a number from 1 to 64"):
        preflight.check_channels([channel])
    monkeypatch.setenv(cache.LIMIT, "much")
    with pytest.raises(AgentError, match=r"channel 'train': .*BYTES='much' is not a size"):
        preflight.check_channels([channel])
    with pytest.raises(AgentError, match="BYTES='much' is not a size"):
        files.prepare(channel, [("algo-1", tmp_path)], tell=lambda line: None)


def test_what_an_interrupted_download_has_left_needs_no_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mebibyte = 1 << 20
    item = DataObject("s3://b/large", 900 * mebibyte, "etag")
    place = cache.entry(item, tmp_path)
    assert place is not None and place.received() == 0
    monkeypatch.setattr(download._Downloads, "bring", lambda self, place: None)
    free = SimpleNamespace(f_bavail=500 * mebibyte, f_frsize=1)
    monkeypatch.setattr("container.agent.download.os.statvfs", lambda path: free)
    with pytest.raises(AgentError, match=r"the download needs 943.7 MB"):
        download.download([item], tmp_path)
    place.partial.parent.mkdir()
    place.partial.touch()
    os.truncate(place.partial, 700 * mebibyte)
    assert list(download.download([item], tmp_path)) == [item.uri]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("a-b", "a-b"), "would be the same file"),
        (("a", "a/b"), "is an object, but would also be the folder of"),
        (("../a",), "its key has '.' or '..'"),
    ],
)
def test_keys_that_cannot_be_files(keys: tuple[str, ...], message: str) -> None:
    items = [DataObject(f"s3://b/{number}", 1, None, key) for number, key in enumerate(keys)]
    with pytest.raises(SourceError, match=message):
        files.check_keys("s3://b", items)


class Terminal(io.StringIO):
    """A screen that can redraw a line."""

    def isatty(self) -> bool:
        return True


def test_the_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log and on a terminal, where each state is drawn in the place of the one before."""
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    lines: list[bytes] = []
    bar = progress.ProgressBar(lines.append, "algo-1", "channel 'train'", 2_000_000, first_s=0.0)
    for count in (0, 1_500_000, -500_000, 1_000_000):  # a part is read again
        bar.advance(count)
    bar.end("4 objects")
    *states, last = shown(lines, io.StringIO()).splitlines()
    begin = "[algo-1] channel 'train'"
    assert states[0] == f"{begin} ░░░░░░░░░░░░░░░░░░░░   0%  0 B of 2.0 MB, 0 B/s"
    assert states[2].startswith(f"{begin} ██████████░░░░░░░░░░  50%  1.0 MB of 2.0 MB")
    assert states[3].startswith(f"{begin} ████████████████████ 100%  2.0 MB of 2.0 MB")
    assert last == f"{begin} ████████████████████ 100%  4 objects"
    drawn = shown(lines, Terminal()).split("\x1b[1A\r\x1b[J")
    assert drawn == [f"{state}\n" for state in (*states, last)]


def answer(status: int, code: str, **headers: str) -> ClientError:
    """Return an error answer of S3."""
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": {"Code": code, "Message": "said"}, "ResponseMetadata": metadata}, "GetObject")  # type: ignore[arg-type]


@pytest.fixture
def s3_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings of a client that asks nothing."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client.forget()
    yield
    client.forget()


@pytest.mark.usefixtures("s3_settings")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            answer(301, "PermanentRedirect", **{"x-amz-bucket-region": "eu-west-1"}),
            r"bucket 'b' is in another region 'eu-west-1': said. Set AWS_REGION=eu-west-1 to",
        ),
        (answer(403, "SignatureDoesNotMatch"), "does not accept the credentials: .*Correct AWS_ACCESS_KEY_ID"),
        (answer(403, "AccessDenied"), "denies access: AccessDenied .*Check that the credentials may list and read"),
        (answer(412, "PreconditionFailed"), "at byte 7: it changed while the job read it"),
        (answer(503, "SlowDown"), "answers 503 SlowDown"),
        (NoCredentialsError(), r"there are no AWS credentials.*AWS_PROFILE"),
        (EndpointConnectionError(endpoint_url="http://s3"), "Could not connect .* Check the network and AWS_ENDPOINT"),
    ],
)
def test_errors_of_s3_have_a_cause_and_a_remedy(error: Exception, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        raise client.explain("s3://b/key", error, offset=7)


@pytest.mark.usefixtures("s3_settings")
@pytest.mark.parametrize(
    "error",
    [EndpointConnectionError(endpoint_url="http://s3"), ConnectionClosedError(endpoint_url="http://s3"), OSError("x")],
)
def test_a_server_that_is_away_for_a_moment_fails_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a server that restarts, or a failure of the name service."""
    monkeypatch.setattr(retrying, "BACKOFF", retrying.Backoff(attempts=3, first_s=0.0))
    answers: list[Exception | str] = [error, error, "here"]

    def request() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert client.call("s3://b/key", request) == "here"
    answers = [error] * 3
    with pytest.raises(SourceError):
        client.call("s3://b/key", request)
    assert not answers


def test_a_machine_that_cannot_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentError, match=r"lacks .*apt install fuse3.*, which input mode 'FastFile' needs"):
        mounting.check()


def test_mounts_that_any_user_may_read_are_in_a_folder_of_their_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounting, "check", lambda: "rclone")
    (tmp_path / "mounts").mkdir()
    (tmp_path / "mounts").chmod(0o755)  # as another attempt, or someone else, may have left it
    mounting.Mounts(tmp_path / "mounts", everybody=True)
    assert stat.S_IMODE((tmp_path / "mounts").stat().st_mode) == 0o700
