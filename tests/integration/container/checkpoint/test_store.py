"""The folder of checkpoints: damage, full disks, readers beside the writer, references."""

from __future__ import annotations

import errno
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import contents

from container.checkpoint import (
    CheckpointLockedError,
)
from container.checkpoint.store import CheckpointStore
from container.contract import variables


@pytest.fixture
def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = CheckpointStore(tmp_path / "checkpoints")
    made.lock()
    yield made
    made.close()


# --- one writer ---


def test_a_second_writer_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointLockedError, match="this process already"):
        CheckpointStore(store.directory).lock(timeout=0)
    # The refused one must not have given the first one's lock away, also by another path: jobs may see one folder by
    # different ones.
    (tmp_path / "link").symlink_to(store.directory)
    code = (
        "import sys; from container.checkpoint.store import CheckpointStore\n"
        "try: CheckpointStore(sys.argv[1]).lock(timeout=0.1)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "link"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"CheckpointLockedError process {os.getpid()} on "), done
    assert f"writes checkpoints into {tmp_path}/link, which is {store.directory}." in done.stdout, done
    assert "read_only=True" in done.stdout


@pytest.mark.leaves("files")
def test_a_killed_writer_is_not_in_the_way_even_if_its_children_live(tmp_path: Path) -> None:
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ[variables.JOB_NAME] = "the-other-job"
        CheckpointStore(tmp_path).lock()
        if os.fork() == 0:
            os.write(ready_write, f"{os.getpid()}\n".encode())
            signal.pause()
        signal.pause()
    grandchild = int(os.read(ready_read, 20))
    try:
        with pytest.raises(CheckpointLockedError, match=f"process {child} on .* of job the-other-job "):
            CheckpointStore(tmp_path).lock(timeout=0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        again = CheckpointStore(tmp_path)
        again.lock(timeout=1)
        again.close()
    finally:
        os.kill(grandchild, signal.SIGKILL)


# --- disks ---


def run_limited(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FILL = """
import sys
import numpy as np
from container.checkpoint import Checkpointer, CheckpointWriteError

with Checkpointer(sys.argv[1], keep=None, asynchronous=sys.argv[2] == "asynchronous") as checkpointer:
    for step in range(1, 100):
        try:
            checkpointer.save({"a": np.full(50_000 * (1 if step == 1 else int(sys.argv[3])), step)}, step=step)
            checkpointer.wait()
        except CheckpointWriteError as error:
            print(step, error)
            break
    restored = checkpointer.restore()
    assert restored.step == step - 1 and not restored.skipped, restored
    assert (restored.arrays["arrays"]["a"] == step - 1).all()
    import os
    assert not [name for name in os.listdir(sys.argv[1]) if name.startswith(".staging")]
    checkpointer.save({"a": np.zeros(1)}, step=step)  # it goes on where there is room again
"""


def test_a_file_that_cannot_grow(tmp_path: Path) -> None:
    limit = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))\n"
    )
    out = run_limited(limit + FILL, str(tmp_path), "synchronous", "2")
    assert out.startswith("2 checkpoint-00000002-step-2 could not be written into"), out
    assert os.strerror(errno.EFBIG) in out and "untouched" in out
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 500_000


def on_a_small_disk(tmp_path: Path, script: str, *arguments: str) -> str:
    """What a script prints that gets a real file system of 2 MB, in a mount namespace of its own."""
    unshare = shutil.which("unshare")
    (tmp_path / "script.py").write_text(script)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m none {shlex.quote(str(disk))}"
    if unshare is None or subprocess.run([unshare, "-Urm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a mount namespace")
    command = ["sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, tmp_path / "script.py", disk, *arguments]
    done = subprocess.run([unshare, "-Urm", *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LESS = """
import sys
import numpy as np
from container.checkpoint import Checkpointer, CheckpointWriteError

def fill(step, size):
    return {"a": np.full(size // 8, step)}

with Checkpointer(sys.argv[1], keep=None, asynchronous=False) as checkpointer:
    try:
        for step in range(1, 100):
            checkpointer.save(fill(step, 400_000), step=step)
    except CheckpointWriteError:
        pass
# The remedy works at once: what need not stay any more goes first.
with Checkpointer(sys.argv[1], keep=1, asynchronous=False) as checkpointer:
    checkpointer.save(fill(100, 400_000), step=100)
    assert [name.rpartition("-")[2] for name in checkpointer.checkpoints()] == ["100"], checkpointer.checkpoints()
    checkpointer.save(fill(101, 1_200_000), step=101)
    try:
        checkpointer.save(fill(102, 1_200_000), step=102)
    except CheckpointWriteError as error:
        print(error)
    assert checkpointer.restore().step == 101
"""


def test_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    said = on_a_small_disk(tmp_path / "one", FILL, "asynchronous", "1")
    assert os.strerror(errno.ENOSPC) in said and "bytes are free" in said, said
    assert "or keep fewer checkpoints: keep=1 makes room" in said
    said = on_a_small_disk(tmp_path, LESS)
    assert "Free some space: an old checkpoint is deleted after the new one is complete, so even keep=1" in said, said


READ_ONLY = """
import sys
from container.checkpoint import Checkpointer, CheckpointWriteError

try:
    Checkpointer(sys.argv[1]).restore()
except CheckpointWriteError as error:
    print(error)
print(Checkpointer(sys.argv[1], read_only=True).restore().step)
"""


def test_a_disk_that_can_only_be_read(store: CheckpointStore) -> None:
    """A real mount, in a namespace of its own."""
    store.write(contents(7))
    store.close()
    unshare, folder = shutil.which("unshare"), store.directory
    mount = "mount --bind {0} {0} && mount -o remount,bind,ro {0}".format(shlex.quote(str(folder)))
    if unshare is None or subprocess.run([unshare, "-Urm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a mount namespace")
    command = [unshare, "-Urm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", READ_ONLY, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    refused, step = done.stdout.splitlines()
    assert os.strerror(errno.EROFS) in refused and "read_only=True" in refused and folder in refused, done
    assert step == "7"
