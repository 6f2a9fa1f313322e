"""What is removed, and what never is."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cleaning
import psutil
import pytest
from cleaning import make_job, names

from container.system import folders
from container.system.processes import descendants
from container.system.unused import unused_folders
from estimators.cli import clean
from estimators.cli.clean import ItemKind, Selection
from estimators.records.record import JobRecord
from estimators.supervisor import finalize


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return cleaning.separate(tmp_path, monkeypatch)


def age(path: Path) -> None:
    os.utime(path, (time.time() - 3600,) * 2)


CODE = "import time; print('ready', flush=True); time.sleep(600)"
#: It starts a process that has a session of its own and does not say whose it is.
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CODE!r}], env={{}}, start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def start(tmp_path: Path, environment: dict[str, str], cwd: Path | None = None, code: str = CODE) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **environment}, cwd=cwd, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    return process


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen]]:
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_processes_of_a_job_without_a_supervisor_are_ended_and_no_others(tmp_path: Path, processes: list) -> None:
    record, running, other = make_job("crashed"), JobRecord.create("running"), JobRecord.create("other", tmp_path / "o")
    base = str(record.tree("algo-1").base)
    orphan = start(tmp_path, {"FLEETFIT_JOB": "crashed", "SAGEMAKER_BASE_DIR": base}, code=PARENT)
    [child] = descendants(orphan.pid)
    watched = os.pidfd_open(child)
    tied = start(tmp_path, {"FLEETFIT_JOB": "other", "SAGEMAKER_BASE_DIR": str(other.tree("algo-1").base)})
    processes += [
        orphan,
        start(tmp_path, {"SAGEMAKER_BASE_DIR": base}),
        start(tmp_path, {"FLEETFIT_JOB": "running"}),
        tied,
        start(tmp_path, {"FLEETFIT_JOB": "unknown"}),
    ]
    try:
        items = clean.find(Selection())
        assert [(item.process and item.process.pid, item.kind) for item in items] == [(orphan.pid, ItemKind.PROCESS)]
        assert "crashed" in items[0].why
        assert items[0].bytes > 1_000_000
        assert [removal.error for removal in clean.remove(items)] == [None]
        assert orphan.wait(timeout=5) == -9
        assert select.select([watched], [], [], 5)[0], "what it has started ends with it"
    finally:
        os.close(watched)
    assert [process.poll() for process in processes[1:]] == [None] * 4
    other.release()
    assert clean.leftover_processes() == []
    assert [item.process and item.process.pid for item in clean.leftover_processes(tmp_path / "o")] == [tied.pid]

    running.release()

    # A pid that is another process now is left alone.
    earlier = psutil.Process(tied.pid)
    earlier._ident = (tied.pid, earlier.create_time() - 1000)  # type: ignore[attr-defined]
    item = clean.Item(kind=ItemKind.PROCESS, name="x", why="", process=earlier)
    assert [removal.error for removal in clean.remove([item])] == [None]
    with pytest.raises(subprocess.TimeoutExpired):
        tied.wait(0.1)


def claim_by_the_dead(folder: Path) -> None:
    """Have a process that is gone be the maker of a folder."""
    gone = 2**22 + 1  # no kernel has such a pid
    (folder / folders.NOTE).write_text(f"{gone} 1 {os.readlink('/proc/self/ns/pid')}")


def test_folders_that_no_process_uses(tmp_path: Path, processes: list) -> None:
    root = tmp_path / "tmp"
    kinds = ("unused", "working", "worked-in", "told-of", "open", "new", "public", "yours", "elsewhere")
    made = {name: root / f"fleetfit-{name}" for name in kinds}
    importers = (folders.of_importers("0123abcd"), root / "fleetfit-kept-model")
    for folder in (*made.values(), *importers):
        folder.mkdir(mode=0o700)
        (folder / "file").write_text("x")
    for name, folder in made.items():
        if name == "working":
            folders.claim(folder)  # this process, which lives
        elif name == "elsewhere":  # a container with the same /tmp: nobody sees its processes from here
            (folder / folders.NOTE).write_text(f"{2**22 + 1} 1 pid:[1]")
        elif name != "yours":
            claim_by_the_dead(folder)
    for folder in (*made.values(), *importers):
        age(folder)
    os.utime(made["new"])
    made["public"].chmod(0o755)
    os.symlink("/usr", root / "fleetfit-link")
    processes.append(start(tmp_path, {}, cwd=made["worked-in"]))
    processes.append(start(tmp_path, {"FLEETFIT_RUNTIME_DIR": str(made["told-of"] / "algo-1")}))
    with (root / "fleetfit-open" / "file").open() as file:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(600)"], stdin=file, stdout=subprocess.DEVNULL
            )
        )
    items = clean.find(Selection())
    assert names(items, ItemKind.FOLDER) == sorted([str(made["unused"]), str(importers[0])])
    clean.remove(items)
    left = {*made.values(), importers[1], root / "fleetfit-link"} - {made["unused"]}
    assert {*root.iterdir()} == left


def test_shared_memory_of_jobs_that_were_killed_is_a_leftover(tmp_path: Path) -> None:
    shared = tmp_path / "shm"
    used, unused = shared / "fleetfit-abcdefgh-algo-1", shared / "fleetfit-ijklmnop-algo-2"
    for folder in (used, unused):
        folder.mkdir(mode=0o700)
        (folder / "segment").write_bytes(b"x" * 100)
        claim_by_the_dead(folder)
    assert unused_folders() == [], "their jobs may be starting"
    for folder in (used, unused):
        age(folder)
    # A toolkit is told of its folder beside the sockets, from which the other's name follows.
    process = start(tmp_path, {"FLEETFIT_RUNTIME_DIR": "/somewhere/fleetfit-abcdefgh/algo-1"})
    try:
        assert unused_folders() == [unused]
        finalize.tidy()
    finally:
        process.kill()
        process.communicate()
    assert not unused.exists() and used.exists()
