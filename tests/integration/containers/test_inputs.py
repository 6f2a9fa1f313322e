"""What containers see of channels: FastFile mode, which nothing in them may change, and copies, which scripts may."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import clusters
import jobs_on_s3
import pytest
import s3_server
import sharing

from estimators.backends.docker.engine import Engine
from estimators.inputs import TrainingInput

pytestmark = pytest.mark.timeout(1500)  # the first one has the images made

needs_fuse = pytest.mark.skipif(
    shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="needs fuse3 and /dev/fuse",
)

#: Reads a channel, and tries to change it in every way that root has.
SCRIPT = """
import os, pathlib
import aid
root = pathlib.Path(os.environ["SM_CHANNEL_MINE"])
files = {str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()}
def tries(act):
    try:
        act()
        return True
    except OSError:
        return False
changed = {
    name: [
        tries(lambda: path.write_text("changed")), tries(lambda: os.chmod(path, 0o777)),
        tries(lambda: os.utime(path)), tries(path.unlink), tries(lambda: os.link(path, "/tmp/mine")),
        tries(lambda: path.resolve().write_text("changed")),
    ]
    for name, path in files.items()
}
aid.report(read={name: path.read_text() for name, path in files.items()}, changed=changed)
"""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.Bucket]:
    with s3_server.bucket(tmp_path, monkeypatch) as bucket:
        yield bucket


def read(job: object) -> dict[int, dict[str, str]]:
    said = clusters.reports(job)  # type: ignore[arg-type]
    assert all(not any(of) for one in said.values() for of in one["changed"].values()), said
    return {rank: one["read"] for rank, one in said.items()}


@needs_fuse
def test_fast_file_mode(make: clusters.Make, s3: s3_server.Bucket, home: Path) -> None:
    everything = {f"d/part-{number}": str(number) * 10 for number in range(4)}
    for name, text in everything.items():
        s3.put(f"train/{name}", text.encode())
    inputs = {"mine": TrainingInput(s3.uri("train"), input_mode="FastFile", distribution="ShardedByS3Key")}
    found = read(clusters.fit(make(SCRIPT, hosts=2), inputs, logs=False))
    assert {**found[0], **found[1]} == everything and len(found[0]) == len(found[1]) == 2
    assert str(home) not in Path("/proc/self/mounts").read_text()


@needs_fuse
def test_an_image_of_another_user_reads_fast_files(make: clusters.Make, s3: s3_server.Bucket, user_image: str) -> None:
    everything = {f"part-{number}": str(number) * 10 for number in range(4)}
    for name, text in everything.items():
        s3.put(f"train/{name}", text.encode())
    make.marks.chmod(0o777)
    inputs = {"mine": TrainingInput(s3.uri("train"), input_mode="FastFile")}
    assert read(clusters.fit(make(SCRIPT, image_uri=user_image), inputs, logs=False)) == {0: everything}


#: Writes into a file of each channel and beside it, as a script does that keeps an index or a cache there.
WRITES = """
import os, pathlib
import aid
said = {}
for name in ("mine", "near"):
    root = pathlib.Path(os.environ[f"SM_CHANNEL_{name.upper()}"])
    said[name] = {path.name: path.read_text() for path in sorted(root.iterdir())}
    for path in root.iterdir():
        path.write_text("changed")
    (root / "index" / "deep").mkdir(parents=True)
    (root / "index" / "deep" / "a").write_text("x")
aid.report(said=said)
"""


def test_a_script_may_write_into_its_channels_and_changes_no_one_elses(
    make: clusters.Make, s3: s3_server.Bucket, engine: Engine, home: Path, tmp_path: Path
) -> None:
    s3.put("train/a", b"aaa")
    s3.put("train/b", b"bbb")
    near = tmp_path / "near"
    near.mkdir()
    (near / "c").write_text("ccc")
    inputs = {"mine": s3.uri("train"), "near": str(near)}
    for hosts, keep in ((2, None), (1, 30), (1, 1)):
        arguments = {} if keep is None else {"keep_alive_period_in_seconds": keep}
        job = clusters.fit(make(WRITES, hosts=hosts, **arguments), inputs, logs=False)
        expected = {"mine": {"a": "aaa", "b": "bbb"}, "near": {"c": "ccc"}}
        assert [one["said"] for one in clusters.reports(job).values()] == [expected] * hosts
        assert sorted(path.read_bytes() for path in (tmp_path / "cache" / "data").glob("*/*")) == [b"aaa", b"bbb"]
        assert [path.name for path in near.iterdir()] == ["c"] and (near / "c").read_text() == "ccc"
        assert not job.record.tree("algo-1").channel("mine").exists(), "a record does not keep its bytes"
    clusters.until(lambda: not list((home / "warm").glob("*")))


@pytest.mark.parametrize(("way", "hosts"), jobs_on_s3.again("retry"))
def test_what_every_attempt_saves_is_in_s3(make: clusters.Make, s3: s3_server.Bucket, way: str, hosts: int) -> None:
    jobs_on_s3.check_attempts(make, s3, way, hosts)


def test_the_code_of_a_job_that_is_over_is_kept_once(make: clusters.Make) -> None:
    sharing.check_code_is_kept_once(make)
