"""Keys as files: whatever keys there are, they are all there, in S3's order."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.service.errors import ServiceError
from estimators.service.s3 import keys, objects
from estimators.service.s3.keys import OWN, Bucket, behind

KEYS = st.text(alphabet="ab/.-é", min_size=1, max_size=6)


def put(bucket: Bucket, key: str, content: bytes) -> None:
    path, file = bucket.stage()
    with file:
        file.write(content)
    bucket.place(path, key)


def content(bucket: Bucket, key: str) -> bytes | None:
    try:
        with objects.open_object(bucket, key) as file:
            return file.read()
    except ServiceError as error:
        assert error.code == "NoSuchKey"
        return None


def rolled_up(keys: list[str], prefix: str, delimiter: str) -> list[tuple[str, bool]]:
    """What S3's documentation says of lists."""
    found: list[tuple[str, bool]] = []
    for key in sorted(keys, key=str.encode):
        if not key.startswith(prefix):
            continue
        head, there, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        entry = (prefix + head + delimiter, True) if there else (key, False)
        if entry not in found:
            found.append(entry)
    return found


@given(
    steps=st.lists(st.tuples(KEYS, st.booleans()), max_size=30),
    prefix=st.text(alphabet="ab/.", max_size=3),
    delimiter=st.sampled_from(["", "/", "b", "-"]),
)
def test_all_that_was_put_is_there_until_it_is_deleted(
    steps: list[tuple[str, bool]], prefix: str, delimiter: str
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        bucket, wanted = Bucket(folder), {}
        for number, (key, deleted) in enumerate(steps):
            if deleted:
                wanted.pop(key, None)
                bucket.delete(key)
            else:
                wanted[key] = b"%d" % number
                put(bucket, key, wanted[key])
        assert {key: content(bucket, key) for key, _ in steps} == {key: wanted.get(key) for key, _ in steps}
        listed = rolled_up(list(wanted), prefix, delimiter)
        assert list(bucket.walk(prefix, "", delimiter)) == listed
        for place, (name, rolled) in enumerate(listed):  # page by page
            assert list(bucket.walk(prefix, behind(name) if rolled else name, delimiter)) == listed[place + 1 :]
        for key in wanted:
            bucket.delete(key)
        assert os.listdir(folder) == []
    finally:
        shutil.rmtree(folder)


def test_a_file_that_is_put_by_hand_is_the_object(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    put(bucket, "a/b", b"1")
    put(bucket, "a", b"2")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"by hand")
    assert content(bucket, "a") == b"by hand"
    assert [key for key, _ in bucket.walk()] == ["a"]
    put(bucket, "a", b"3")
    assert (tmp_path / "a").read_bytes() == b"3"
    bucket.delete("a")
    assert content(bucket, "a") is None


def test_links_are_no_objects_and_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"s")
    (tmp_path / "bucket" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "bucket" / "file").symlink_to(tmp_path / "outside" / "secret")
    os.mkfifo(tmp_path / "bucket" / "fifo")
    bucket = Bucket(tmp_path / "bucket")
    assert [content(bucket, key) for key in ("folder/secret", "file", "fifo")] == [None] * 3
    assert list(bucket.walk()) == []
    for key in ("folder/new", "folder/made/deep/new"):
        with pytest.raises(ServiceError, match="symbolic link"):
            put(bucket, key, b"n")
    assert os.listdir(tmp_path / "outside") == ["secret"]
    put(bucket, "file", b"mine")  # takes the link's place
    bucket.delete("folder/secret")
    assert (tmp_path / "outside" / "secret").read_bytes() == b"s"
    assert content(bucket, "file") == b"mine"


@pytest.mark.parametrize("own", [OWN, f"{OWN}/keys", f"{OWN}/uploads"])
def test_a_link_in_place_of_a_folder_of_our_own_is_not_followed(own: str, tmp_path: Path) -> None:
    (tmp_path / "bucket" / own).parent.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "new-years-eve.jpg").touch()
    (tmp_path / "bucket" / own).symlink_to(tmp_path / "outside")
    with pytest.raises(ServiceError, match=r"is a symbolic link; links are not followed\. Remove it"):
        Bucket(tmp_path / "bucket")
    assert os.listdir(tmp_path / "outside") == ["new-years-eve.jpg"]


def test_what_killed_servers_left_is_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    (left, file), (written, other) = bucket.stage(), bucket.stage()
    file.close()  # the end of its process
    put(bucket, "in/", b"m")
    (tmp_path / OWN / "new-years-eve.jpg").touch()
    half = tmp_path / OWN / "keys" / ("0" * 64)
    half.mkdir()
    (half / "key").write_text("a//b")
    old = time.time() - 3600
    os.utime(half, (old, old))
    bucket.sweep()
    assert not left.exists() and written.exists() and not half.exists()
    assert (tmp_path / OWN / "new-years-eve.jpg").exists()
    assert list(bucket.walk()) == [("in/", False)]
    other.close()


def test_an_object_that_is_half_removed_is_none(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    put(bucket, "in/", b"1")
    (place,) = (tmp_path / OWN / "keys").iterdir()
    (place / "object").unlink()
    assert content(bucket, "in/") is None and list(bucket.walk()) == []
    put(bucket, "in/", b"2")
    assert content(bucket, "in/") == b"2" and list(bucket.walk()) == [("in/", False)]


def test_names_that_a_file_system_does_not_take_lie_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(tmp_path)
    real = os.replace

    def short(source: Path, target: Path) -> None:
        if len(Path(target).name) > 143:  # of eCryptfs
            raise OSError(errno.ENAMETOOLONG, "File name too long")
        real(source, target)

    monkeypatch.setattr("estimators.service.s3.keys.os.replace", short)
    put(bucket, "a/" + "n" * 200, b"1")
    assert content(bucket, "a/" + "n" * 200) == b"1"
    assert list(bucket.walk()) == [("a/" + "n" * 200, False)]


def test_an_object_reaches_another_file_system_with_what_is_noted_of_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == tmp_path.stat().st_dev:
            pytest.fail("this test needs two file systems")
        (tmp_path / "staged").write_bytes(b"1")
        os.setxattr(tmp_path / "staged", "user.fleetfit.s3", b"noted")
        keys._move(tmp_path / "staged", Path(other, "a"))
        assert os.listdir(other) == ["a"]
        assert Path(other, "a").read_bytes() == b"1"
        assert os.getxattr(Path(other, "a"), "user.fleetfit.s3") == b"noted"


def test_a_folder_that_cannot_be_read_is_not_taken_for_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(Bucket(tmp_path), "a/b", b"1")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("estimators.service.s3.keys.os.scandir", refuse)
    with pytest.raises(PermissionError):
        list(Bucket(tmp_path).walk())


def test_a_name_that_is_not_utf_8_is_left_out(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).touch()
    put(Bucket(tmp_path), "a", b"1")
    assert list(Bucket(tmp_path).walk()) == [("a", False)]
