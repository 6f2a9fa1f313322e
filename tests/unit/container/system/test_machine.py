"""What is read of the machine agrees with what others read of it."""

import os
import re
from pathlib import Path

import pytest

from container.system import machine, openmpi


def test_facts_of_this_machine() -> None:
    facts = machine.facts()
    assert 1 <= facts.cores <= len(os.sched_getaffinity(0)) <= facts.cores_of_machine
    total = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    assert 0 < facts.memory_available_bytes <= facts.memory_bytes <= total


def test_cores_follow_the_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert machine.facts().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("files", "quota", "memory", "pids"),
    [
        ({"cpu.max": "150000 100000", "memory.max": "1000000000", "memory.current": "400000000", "pids.max": "50"},
         1.5, (1_000_000_000, 600_000_000), 50),
        ({"cpu.max": "max 100000", "memory.max": "max", "pids.max": "max"}, None, None, None),
        ({"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": "9223372036854771712"},
         2.0, None, None),
        ({"memory.max": "1000000000", "memory.current": "900000000", "memory.stat": "inactive_file 800000000\n"},
         None, (1_000_000_000, 900_000_000), None),
    ],
)  # fmt: skip
def test_control_groups(tmp_path: Path, files: dict, quota: object, memory: object, pids: object) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert machine._cpu_quota((tmp_path,)) == quota
    if memory is not None:
        assert machine._memory((tmp_path,)) == memory
    else:
        assert machine._memory((tmp_path,))[0] == machine._memory(())[0]
    if pids is not None:
        assert machine._process_limit((tmp_path,)) == pids


def test_gpus_are_listed_and_hidden(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
        (tmp_path / f"0000:0{number}:00.0" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 3\n")
    assert machine.gpus({}, tmp_path) == ("NVIDIA H200", "NVIDIA H200")
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == ("NVIDIA H200",)
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()
    assert machine.gpus({}, tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (250e6, "250 MB"), (3.21e9, "3.2 GB")]
)
def test_sizes_read_well(number: float, text: str) -> None:
    assert machine.format_bytes(number) == text


def test_free_space_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert machine.free_bytes(tmp_path / "a" / "b") == pytest.approx(machine.free_bytes(tmp_path), rel=0.1)


def test_openmpis_prefix_is_without_links_as_its_ranks_see_it(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to("venv")
    python = str(tmp_path / "link" / "bin" / "python")
    assert openmpi.openmpi_prefix(python) is None
    for name in ("mpirun", "orted"):
        (tmp_path / "venv" / "bin" / name).touch()
    assert openmpi.openmpi_prefix(python) == str((tmp_path / "venv").resolve())
