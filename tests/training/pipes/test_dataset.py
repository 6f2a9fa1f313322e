"""PipeModeDataset against real agents and FIFOs."""

from __future__ import annotations

import os
from pathlib import Path

import feeding
import launching
import pytest

CHECKS = Path(__file__).with_name("checks.py")
#: What is another way where the compiled reader is missing.
WITHOUT = (
    "check_epochs_repeat_and_zip",
    "check_a_record_comes_though_its_writer_waits",
    "check_which_reader_it_is",
    "check_two_damaged_streams_are_told_apart",
    "check_faults_name_object_offset_and_record",
    "check_damaged_data_is_found",
    "check_resuming",
)


def check(folder: Path, *names: str, **environment: str) -> str:
    paths = os.pathsep.join([str(Path(feeding.__file__).parent), launching.PYTHONPATH])
    ended = launching.alone([str(CHECKS), str(folder), *names], PYTHONPATH=paths, **environment)
    assert ended.code == 0, ended.text
    assert ended.text.count(" ok\n") == (len(names) or CHECKS.read_text().count("\ndef check_"))
    return ended.text


@pytest.mark.tensorflow
def test_dataset(tmp_path: Path) -> None:
    assert "PipeModeDataset t_0 total read_bytes: 83" in check(tmp_path)


@pytest.mark.tensorflow
def test_dataset_without_the_compiled_reader(tmp_path: Path) -> None:
    check(tmp_path, *WITHOUT, FLEETFIT_NATIVE_PIPE="0")
