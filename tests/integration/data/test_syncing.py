"""What ranks write before the agent that keeps checkpoints in step has looked: it is theirs, and is brought."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import Bucket, Faults
from waiting import until

from container.agent.s3 import listing
from container.agent.syncing import Sender, Uploader, _identity, restore
from container.contract import messages
from container.contract.errors import AgentError
from container.system import archive, transfer
from container.system.saved import files_below
from estimators.backends.hosts.checkpoints import IncomingCheckpoints


def bring(host: Path, here: Path, restored: dict[str, tuple[int, int]]) -> None:
    """Run ``agent sync out`` on a host's folder, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "container", "agent", "sync", "out", "--dir", str(host), "--host", "algo-1"],
        input=messages.encode({"op": "restored", "files": restored}),
        stdout=subprocess.PIPE,
        check=True,
    )
    incoming = IncomingCheckpoints(here, "algo-1", lambda line: None)
    incoming.feed(done.stdout)
    incoming.close()


def write(path: Path, text: str, time: int) -> tuple[int, int]:
    """Write a file; its size and time in ns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(time, time))
    return len(text), time


def test_only_what_was_brought_to_a_host_is_taken_for_restored(tmp_path: Path) -> None:
    host, here = tmp_path / "host", tmp_path / "here"
    restored = {}
    for name in ("old", "rewritten", "checkpoint-1-step-1/manifest.json"):
        restored[name] = write(host / name, "1234", 10**18)
        write(here / name, "here", 10**18)
    write(host / "rewritten", "5678", 10**18 + 1)  # as long as it was
    write(host / "new", "9", 10**18)
    write(host / "checkpoint-2-step-2" / "manifest.json", "{}", 10**18)
    (host / "checkpoint-1-step-1" / "manifest.json").unlink()
    write(here / ".unfinished" / "weights", "ours", 10**18)
    bring(host, here, restored)
    found = {str(path.relative_to(here)): path.read_text() for path in here.rglob("*") if path.is_file()}
    assert found == {
        "old": "here",
        "rewritten": "5678",
        "new": "9",
        "checkpoint-2-step-2/manifest.json": "{}",
        ".unfinished/weights": "ours",
    }


def make_links(folder: Path) -> None:
    """What frameworks leave beside plain files, and what is the Checkpointer's own."""
    for name in ("dcp/.metadata", "epoch-3.ckpt", ".staging-checkpoint-1-step-1-abcd/tensors", ".lock"):
        write(folder / name, name, 10**18)
    for name in ("manifest.json", "tensors"):
        write(folder / "checkpoint-1-step-1" / name, f"{name} of 1", 10**18)
    (folder / "saved" / "assets").mkdir(parents=True)
    (folder / "last.ckpt").symlink_to("epoch-3.ckpt")
    (folder / "absolute.ckpt").symlink_to(folder / "epoch-3.ckpt")
    (folder / "best").symlink_to("checkpoint-1-step-1")
    (folder / "dcp" / "up").symlink_to("..")
    (folder / "outside").symlink_to("/etc/hostname")
    (folder / "nothing").symlink_to("gone")


def tree(folder: Path) -> dict[str, str]:
    """Whatever is in a folder: texts of files, targets of links, "" for empty folders."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text()
        elif not list(path.iterdir()):
            found[name] = ""
    return found


_FILES = {
    "dcp/.metadata": "dcp/.metadata",
    "epoch-3.ckpt": "epoch-3.ckpt",
    "checkpoint-1-step-1/manifest.json": "manifest.json of 1",
    "checkpoint-1-step-1/tensors": "tensors of 1",
}


def test_links_and_dot_files_and_empty_folders_come_from_a_host(tmp_path: Path) -> None:
    host, here, other = (tmp_path / name for name in ("host", "here", "other"))
    make_links(host)
    bring(host, here, {})
    kept = {
        **_FILES,
        "saved/assets": "",
        "last.ckpt": "-> epoch-3.ckpt",
        "absolute.ckpt": "-> epoch-3.ckpt",
        "best": "-> checkpoint-1-step-1",
    }
    assert tree(here) == kept
    # The next host gets them as they are, which it shows by the same facts.
    packed = tmp_path / "packed.tar"
    with packed.open("wb") as file:
        transfer.pack(file, [(here, "")], follow=False)
    with packed.open("rb") as file:
        archive.extract_file(file, other, bounds=archive.UNBOUNDED)
    assert tree(other) == kept and files_below(other) == files_below(here)
    # What is deleted or moved there follows.
    (other / "last.ckpt").unlink()
    (other / "last.ckpt").symlink_to("checkpoint-1-step-1/tensors")
    (other / "best").unlink()
    (other / "saved" / "assets").rmdir()
    bring(other, here, files_below(here))
    assert tree(here) == {
        **_FILES,
        "saved": "",
        "last.ckpt": "-> checkpoint-1-step-1/tensors",
        "absolute.ckpt": "-> epoch-3.ckpt",
    }


def test_links_dot_files_and_empty_folders_are_in_s3_and_labels_come_back(
    s3: Bucket, faults: Faults, tmp_path: Path
) -> None:
    host, other = tmp_path / "host", tmp_path / "other"
    told: list[bytes] = []
    make_links(host)
    Uploader(host, s3.uri("ck"), host="algo-1", tell=told.append).run(())
    assert sorted(line.partition(b"/host/")[2].split()[0] for line in told) == [b"dcp/up", b"nothing", b"outside"]
    for key in ("x", "x/", f"{tmp_path}/escaped", "../up", "e/"):  # as another program may leave them there
        s3.client.put_object(Bucket=s3.name, Key=f"ck/{key}", Body=b"" if key.endswith("/") else b"theirs")
    restore(other, s3.uri("ck"), host="algo-1", tell=told.append)
    copied = {"last.ckpt": "epoch-3.ckpt", "absolute.ckpt": "epoch-3.ckpt", "best": "-> checkpoint-1-step-1"}
    assert tree(other) == {**_FILES, **copied, "saved/assets": "", "x": "theirs", "e": ""}
    assert sorted(os.listdir(tmp_path)) == ["host", "other"], "something was written outside the folder"


def test_a_folder_in_the_place_of_a_file_and_a_file_in_the_place_of_a_folder(
    s3: Bucket, faults: Faults, tmp_path: Path
) -> None:
    told: list[bytes] = []
    for one, other in (("last", "last/part"), ("best/part", "best")):
        write(tmp_path / "ck" / one, "older", 1)
        incoming = IncomingCheckpoints(tmp_path / "here", "algo-1", told.append)
        sender = Sender(tmp_path / "ck", host="algo-1", restored={})

        def replaced(one: str = one, other: str = other) -> Iterator[None]:
            yield from (None, None)
            (shutil.rmtree if "/" in one else os.unlink)(tmp_path / "ck" / one.partition("/")[0])
            write(tmp_path / "ck" / other, "newer", 2)

        sender._out = io.BytesIO()  # type: ignore[assignment]
        sender.run(replaced())
        incoming.feed(sender._out.getvalue())
        assert tree(tmp_path / "here")[other] == "newer"
        s3.client.put_object(Bucket=s3.name, Key=f"ck/{one}", Body=b"older")
        times = {one: 0.0, other: 0.0}
        while times[other] <= times[one]:  # they are in milliseconds
            s3.client.put_object(Bucket=s3.name, Key=f"ck/{other}", Body=b"newer")
            times = {item.key: item.modified or 0.0 for item in listing.listing(f"{s3.uri('ck')}/")}
    restore(tmp_path / "there", s3.uri("ck"), host="algo-1", tell=told.append)
    assert tree(tmp_path / "there") == {"last/part": "newer", "best": "newer"}
    assert sum(b"replaces it" in line for line in told) == 2


def test_what_is_written_again_goes_up_and_what_is_not_there_in_the_end_is_said(
    s3: Bucket, faults: Faults, tmp_path: Path
) -> None:
    longest = "n" * 255
    for name in ("a", "b", longest):
        s3.put(f"saved/{name}", b"1234")
    restore(tmp_path, s3.uri("saved"), host="algo-1", tell=lambda line: None)
    assert (tmp_path / longest).read_text() == "1234"
    (tmp_path / "b").write_text("5678")  # as long as it was
    uploader = Uploader(tmp_path, s3.uri("saved"), host="algo-1", tell=lambda line: None)
    uploader.run(())
    assert len(faults.requests("PUT", "saved")) == 1
    assert (s3.get("saved/a"), s3.get("saved/b")) == (b"1234", b"5678")

    def end() -> Iterator[None]:
        """Another job writes there after the file has gone up."""
        s3.put("saved/b", b"other")
        until(lambda: 5 in [item.size for item in listing.listing(s3.uri("saved/"), empty=True)])
        uploader._up["b"] = _identity(os.stat(tmp_path / "b"))
        yield from ()

    with pytest.raises(AgentError, match=r"'b' of .* has 4 bytes, but in .* the file has 5 bytes"):
        uploader.run(end())
