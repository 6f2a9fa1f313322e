"""Which files are uploaded although others cannot be."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from container.agent.sources.base import SourceError
from container.agent.syncing import Uploader
from container.contract.errors import AgentError


class Uploads(Uploader):
    """Takes note of the names instead of uploading the files.

    Attributes:
        names: The names of the files that were uploaded.
        damaged: The names of the files that cannot be read.
        down: Whether the server cannot be reached.
    """

    def __init__(self, folder: Path, told: list[bytes]) -> None:
        super().__init__(folder, "s3://b/ck", host="algo-1", tell=told.append, what="files")
        self.names: list[str] = []
        self.damaged: set[str] = set()
        self.down = False
        self.asked = 0

    def _transfer(self, name: str, file: io.FileIO, status: os.stat_result) -> None:
        self.asked += 1
        if name in self.damaged:
            raise OSError(5, "Input/output error", name)
        if self.down:
            raise SourceError(name, "the server cannot be reached")
        self.names.append(name)


def test_a_file_that_cannot_be_read_holds_up_its_own_folder_and_files_outside_of_folders(tmp_path: Path) -> None:
    for name in ("a/MANIFEST", "a/part", "b/part", "c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    told: list[bytes] = []
    uploads = Uploads(tmp_path, told)
    uploads.damaged = {"a/MANIFEST"}
    with pytest.raises(AgentError, match=r"Input/output error.*'a/MANIFEST' and 2 more could not be uploaded"):
        uploads.run([None, None, None])
    assert uploads.names == ["b/part"]  # "c" may name what "a" contains
    assert len(told) == 1 and b"could not be uploaded yet" in told[0]


def test_a_server_that_is_down_is_asked_once_at_each_check_and_told_of(tmp_path: Path) -> None:
    for name in ("a/x", "b/x", "c/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    told: list[bytes] = []
    uploads = Uploads(tmp_path, told)
    uploads.damaged, uploads.down = {"a/x"}, True
    with pytest.raises(AgentError, match="and 2 more"):
        uploads.run([None, None, None])
    assert uploads.asked == 6 and uploads.names == []  # of "a" and "b" at the second, the third and the last check
    assert len(told) == 2
