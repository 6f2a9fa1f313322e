"""The folder of checkpoints: damage, full disks, readers beside the writer, references."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from checkpoints import contents

from container.checkpoint import (
    CheckpointError,
    CheckpointVersionError,
    CheckpointWriteError,
    NoUsableCheckpointError,
    Progress,
    verifying,
)
from container.checkpoint import manifest as manifests
from container.checkpoint.errors import DamagedCheckpointError
from container.checkpoint.retention import Best
from container.checkpoint.store import CheckpointContents, CheckpointStore, _room


@pytest.fixture
def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = CheckpointStore(tmp_path / "checkpoints")
    made.lock()
    yield made
    made.close()


def newest_step(store: CheckpointStore) -> int:
    loaded = store.read_newest()
    assert loaded is not None
    return loaded.manifest.progress.step


# --- what is written is what is read ---


def test_somebody_else_verifies_a_folder(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    names = [store.write(contents(step))[0] for step in (1, 2)]
    Path(store.directory, names[0], "one.bin").write_bytes(b"short")
    assert verifying.main([store.directory]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["name"] == names[0] and "one.bin" in first["damage"]
    assert second == {"name": names[1], "damage": None}
    assert list(verifying.verify(f"{store.directory}/none")) == []


def test_round_trip(store: CheckpointStore) -> None:
    assert store.read_newest() is None
    written = contents(3, metrics={"loss": 0.5, "nan": float("nan")}, metadata={"a": [1, None, "é"]}, facts={"size": 2})
    name, manifest = store.write(written)
    assert name == "checkpoint-00000001-step-3"
    loaded = store.read(name)
    assert loaded.manifest.files == manifest.files
    assert loaded.files["two.bin"].tobytes() == b"head" + bytes([3]) * 5000
    assert loaded.manifest.metadata == {"a": [1, None, "é"]} and loaded.manifest.metrics["loss"] == 0.5


def test_keys_that_are_no_text_do_not_spoil_the_checksum(store: CheckpointStore) -> None:
    store.write(contents(1, metadata={10: "ten", 9: ("a", "b")}))
    loaded = store.read_newest()
    assert loaded is not None and loaded.manifest.metadata == {"10": "ten", "9": ["a", "b"]}


def test_the_newest_is_the_one_saved_last_whatever_its_step(store: CheckpointStore) -> None:
    for step in (9, 10, 2):
        store.write(contents(step))
    assert newest_step(store) == 2


def test_numbers_go_on_after_the_last_one(store: CheckpointStore) -> None:
    store.write(contents(1))
    store.write(contents(2))
    store.close()
    again = CheckpointStore(store.directory)
    again.lock()
    assert again.write(contents(2))[0] == "checkpoint-00000003-step-2"
    again.close()


# --- damage ---


def damage_each_way(path: Path, chance: random.Random) -> str:
    """Damage a file; returns what was done."""
    way = chance.choice(["flip", "flip", "flip", "truncate", "grow", "remove", "zero", "folder"])
    content = bytearray(path.read_bytes())
    if way == "flip":
        bit = chance.randrange(len(content) * 8)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        return f"bit {bit} flipped"
    if way == "truncate":
        os.truncate(path, chance.randrange(len(content)))
    elif way == "grow":
        path.write_bytes(content + b"\0")
    elif way == "zero":
        begin = chance.randrange(len(content))
        path.write_bytes(content[:begin] + bytes(len(content) - begin))
    else:
        path.unlink()
        if way == "folder":
            path.mkdir()
    return way


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_named_and_the_one_before_is_used(store: CheckpointStore, seed: int) -> None:
    chance = random.Random(seed)
    store.write(contents(1))
    name, _ = store.write(contents(2, chance.randbytes(3000)))
    file = chance.choice(["one.bin", "two.bin", manifests.FILE_NAME])
    path = Path(store.directory, name, file)
    before = path.read_bytes()
    done = damage_each_way(path, chance)
    loaded = store.read_newest()
    assert loaded is not None
    if file == manifests.FILE_NAME and loaded.manifest.progress.step == 2:
        # Only white space between two words of JSON can change without changing what it says.
        assert json.loads(path.read_bytes()) == json.loads(before), done
        return
    assert loaded.manifest.progress.step == 1, done
    assert [(skip.name, skip.file) for skip in loaded.skipped] == [(name, file)], done
    assert loaded.skipped[0].reason
    with pytest.raises(DamagedCheckpointError, match=file):
        store.read(name)


def test_every_single_bit_of_a_small_checkpoint(store: CheckpointStore) -> None:
    name, _ = store.write(
        CheckpointContents(progress=Progress(step=1), files={"a.bin": [memoryview(b"some content")]}, metadata="x")
    )
    for file in ("a.bin", manifests.FILE_NAME):
        path = Path(store.directory, name, file)
        content = path.read_bytes()
        for bit in range(len(content) * 8):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            try:
                store.read(name)
            except DamagedCheckpointError:
                continue
            assert file == manifests.FILE_NAME and json.loads(flipped) == json.loads(content), bit
        path.write_bytes(content)
    store.read(name)


def test_what_each_damage_is_called(store: CheckpointStore) -> None:
    name, _ = store.write(contents(1))
    folder = Path(store.directory, name)
    os.truncate(folder / "one.bin", 100)
    with pytest.raises(DamagedCheckpointError, match=r"one\.bin: it is truncated: 100 bytes instead of 5,000"):
        store.read(name)
    (folder / "one.bin").unlink()
    with pytest.raises(DamagedCheckpointError, match=r"one\.bin: it is missing"):
        store.read(name)
    (folder / manifests.FILE_NAME).write_text("{")
    with pytest.raises(DamagedCheckpointError, match=r"manifest\.json: it is not complete JSON"):
        store.read(name)


def test_all_damaged_is_an_error_that_names_each(store: CheckpointStore) -> None:
    for step in (1, 2):
        name, _ = store.write(contents(step))
        os.truncate(Path(store.directory, name, "two.bin"), 1)
    with pytest.raises(NoUsableCheckpointError) as caught:
        store.read_newest()
    assert [skip.name for skip in caught.value.skipped] == ["checkpoint-00000002-step-2", "checkpoint-00000001-step-1"]
    assert "two.bin" in str(caught.value) and store.directory in str(caught.value)


def test_a_later_format_is_refused_not_skipped(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(contents(1))
    monkeypatch.setattr(manifests, "VERSION", 2)
    store.write(contents(2))
    monkeypatch.undo()
    with pytest.raises(CheckpointVersionError, match="format version 2, but this version of fleetfit reads version 1"):
        store.read_newest()


def test_damaged_ones_do_not_push_sound_ones_out(store: CheckpointStore) -> None:
    good, _ = store.write(contents(1))
    bad, _ = store.write(contents(2))
    os.truncate(Path(store.directory, bad, "two.bin"), 1)
    assert newest_step(store) == 1  # which is how it is known
    new, _ = store.write(contents(3))
    store.prune(keep=2)
    assert store.names() == [good, bad, new]
    newer, _ = store.write(contents(4))
    assert store.prune(keep=2) == [good, bad]
    assert store.names() == [new, newer]


# --- what stays ---


def test_the_newest_and_the_best_stay(store: CheckpointStore) -> None:
    best = Best.parse("val_accuracy")
    for step, value in enumerate([0.1, 0.9, 0.3, float("nan"), 0.5, 0.9]):
        store.write(contents(step, metrics={"val_accuracy": value}))
        store.prune(keep=2, best=best)
    assert [int(name.rpartition("-")[2]) for name in store.names()] == [1, 4, 5]
    assert best is not None
    loaded = store.read_best(best)
    assert loaded is not None and loaded.manifest.progress.step == 1


def test_the_best_is_known_to_a_new_process(store: CheckpointStore) -> None:
    best = Best.parse("min val_f")
    for step, value in enumerate([3, 1, 2]):
        store.write(contents(step, metrics={"val_f": value}))
    store.close()
    again = CheckpointStore(store.directory)
    again.lock()
    again.write(contents(3, metrics={"val_f": 5}))
    again.prune(keep=1, best=best)
    assert [int(name.rpartition("-")[2]) for name in again.names()] == [1, 3]
    again.close()


def test_what_a_label_refers_to_stays(store: CheckpointStore) -> None:
    first, _ = store.write(contents(1))
    CheckpointStore(store.directory).pin(first, "before-tuning")  # any process may
    for step in (2, 3):
        store.write(contents(step))
        store.prune(keep=1)
    assert [int(name.rpartition("-")[2]) for name in store.names()] == [1, 3]
    assert store.read("before-tuning").manifest.progress.step == 1
    store.pin(store.names()[-1], "before-tuning")  # moved
    assert store.prune(keep=1) == [first]
    store.unpin("before-tuning")
    with pytest.raises(FileNotFoundError, match="no such label"):
        store.unpin("before-tuning")
    with pytest.raises(FileNotFoundError, match="existing checkpoints and labels: checkpoint-00000003"):
        store.pin("checkpoint-00000009-step-9", "x")
    for label in ("", "../x", ".hidden", "checkpoint-1-step-1", "a b"):
        with pytest.raises(ValueError, match="label"):
            store.pin(store.names()[-1], label)


def test_a_link_made_by_hand_is_a_reference(store: CheckpointStore) -> None:
    first, _ = store.write(contents(1))
    os.symlink(os.path.join(store.directory, first), os.path.join(store.directory, "mine"))
    store.write(contents(2))
    assert store.prune(keep=1) == []


def test_what_is_being_read_stays(store: CheckpointStore) -> None:
    first, _ = store.write(contents(1))
    store.write(contents(2))
    with CheckpointStore(store.directory)._reading(first):
        assert store.prune(keep=1) == []
    assert store.prune(keep=1) == [first]


def test_readers_beside_a_writer_that_keeps_one(store: CheckpointStore) -> None:
    """Each reader finds a whole checkpoint, and never an older one than it found before."""
    ended = threading.Event()
    wrong: list[object] = []
    reads = [0]

    def read() -> None:
        reader = CheckpointStore(store.directory)
        last = 0
        while not ended.is_set():
            loaded = reader.read_newest()
            if loaded is None:
                continue
            step = loaded.manifest.progress.step
            content = loaded.files["one.bin"]
            if loaded.skipped or step < last or (content != step % 256).any():
                wrong.append((loaded.skipped, step, last))
            last = step
            reads[0] += 1

    store.write(contents(1))
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    step = 1
    while (step < 150 or reads[0] < 100) and step < 5000:
        step += 1
        store.write(contents(step))
        store.prune(keep=1)
    ended.set()
    for reader in readers:
        reader.join()
    assert not wrong, wrong[:3]
    assert reads[0] >= 100
    store.prune(keep=1)
    assert len(store.names()) == 1


def test_leftovers_are_cleared_by_the_next_writer_and_nothing_else_is(store: CheckpointStore) -> None:
    store.write(contents(1))
    store.close()
    root = Path(store.directory)
    for name in (".staging-checkpoint-00000002-step-2-aa", ".trash-checkpoint-00000000-step-0-bb"):
        (root / name).mkdir()
        (root / name / "one.bin").write_bytes(b"x")
    (root / "notes.txt").write_text("mine")
    (root / "checkpoint-of-mine").mkdir()
    assert newest_step(CheckpointStore(root)) == 1
    assert (root / ".staging-checkpoint-00000002-step-2-aa").exists()  # a reader leaves them: they may be in use
    again = CheckpointStore(root)
    again.lock()
    again.close()
    assert sorted(os.listdir(root)) == [".lock", "checkpoint-00000001-step-1", "checkpoint-of-mine", "notes.txt"]


def test_what_is_no_folder_is_no_checkpoint(store: CheckpointStore) -> None:
    store.write(contents(1))
    store.close()
    root = Path(store.directory)
    (root / "checkpoint-00000009-step-9").write_text("a stray file")
    os.symlink("checkpoint-00000001-step-1", root / "checkpoint-00000010-step-9")
    assert store.names() == ["checkpoint-00000001-step-1"] and newest_step(store) == 1
    # Nor does it get into the way of the one that would have its name.
    store.lock()
    assert store.write(contents(9))[0] == "checkpoint-00000011-step-9"
    assert newest_step(store) == 9


def test_a_newest_one_that_is_a_link_is_not_passed_over_in_silence(store: CheckpointStore, tmp_path: Path) -> None:
    name, _ = store.write(contents(1))
    store.write(contents(2))
    moved, linked = Path(store.directory, "checkpoint-00000002-step-2"), tmp_path / "another-disk"
    moved.rename(linked)
    moved.symlink_to(linked)
    loaded = store.read_newest()
    assert loaded is not None and loaded.name == name
    assert [str(item) for item in loaded.skipped] == [
        f"checkpoint-00000002-step-2: it is a link to {linked}, which another program may change. To restore from "
        "that folder, copy it here"
    ]
    shutil.rmtree(Path(store.directory, name))
    with pytest.raises(NoUsableCheckpointError, match="it is a link to"):  # rather than from the beginning
        store.read_newest()


@pytest.mark.parametrize("file", ["manifest.json", "one.bin"])
def test_a_fifo_among_the_files_is_damage_and_nobody_waits_for_it(store: CheckpointStore, file: str) -> None:
    store.write(contents(1))
    newest, _ = store.write(contents(2))
    path = Path(store.directory, newest, file)
    path.unlink()
    os.mkfifo(path)
    loaded = store.read_newest()
    assert loaded is not None and loaded.manifest.progress.step == 1
    assert [str(item) for item in loaded.skipped] == [f"{newest}/{path.name}: it is not a regular file"]


def test_writing_needs_the_lock(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="lock"):
        CheckpointStore(tmp_path).write(contents(1))


def test_room_is_counted_in_blocks() -> None:
    text = _room([2984], free=8192, block=4096)
    assert text == "8,192 bytes are free, and at least 12,288 are needed, counted in blocks of 4,096"
    assert "at least 8,192 are needed" in _room([], free=0, block=4096)
    assert "16,384 are needed" in _room([1, 4096], free=0, block=4096)
    assert "a quota, a reserve or another program" in _room([1], free=1 << 30, block=4096)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointWriteError, match="SM_CHECKPOINT_DIR"):
        CheckpointStore(tmp_path / "file" / "checkpoints").lock()


def test_a_read_error_is_damage(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(contents(1))
    store.write(contents(2))
    readv, failed = os.readv, []

    def failing(fd: int, buffers: list[memoryview]) -> int:
        if "step-2" in os.readlink(f"/proc/self/fd/{fd}") and "one.bin" in os.readlink(f"/proc/self/fd/{fd}"):
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return readv(fd, buffers)

    monkeypatch.setattr(os, "readv", failing)
    loaded = store.read_newest()
    assert failed and loaded is not None and loaded.manifest.progress.step == 1
    assert "Input/output error" in loaded.skipped[0].reason


def test_arrays_are_aligned_and_shared(tmp_path: Path) -> None:
    from container.checkpoint import tensors

    arrays = {
        "b": np.array([True, False, True]),
        "f": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(7, np.int64),
        "none": np.zeros((0, 4)),
        "half": np.ones(3, np.float16),
    }
    arena = tensors.Arena([tensors.Spec(name, one.dtype.name, one.shape) for name, one in arrays.items()])
    for name, array in arrays.items():
        arena.views[name][...] = array
    content = np.frombuffer(b"".join(arena.buffers()), np.uint8)
    assert content.size == arena.bytes
    parsed = tensors.parse(content)
    for name, array in arrays.items():
        assert parsed[name].dtype == array.dtype and parsed[name].shape == array.shape
        assert (parsed[name] == array).all()
        assert parsed[name].ctypes.data % array.dtype.itemsize == 0 or array.size == 0
    with pytest.raises(CheckpointError, match="arrays of type complex128 cannot be saved"):
        tensors.Arena([tensors.Spec("c", "complex128", ())])
    for cut in (0, 7, 8, 40):
        with pytest.raises(tensors.TensorsError):
            tensors.parse(content[:cut])
