"""The compiled reader of Pipe mode: made by provisioning, and what is said where it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from container.contract.pipes import library_file
from estimators.provision import pipe_reader
from estimators.provision.errors import PipeReaderUnavailable
from estimators.provision.packages import Installation


def test_this_environment_has_it() -> None:
    assert pipe_reader.target(Path(sys.prefix)).exists()


def test_another_source_has_another_library(tmp_path: Path) -> None:
    source = tmp_path / "reader.cc"
    source.write_text("one")
    first = library_file(tmp_path, source)
    assert first == library_file(tmp_path, source)
    source.write_text("two")
    assert first != library_file(tmp_path, source)


def test_without_tensorflow(installation: Installation) -> None:
    with pytest.raises(PipeReaderUnavailable, match="not installed in"):
        pipe_reader.install(installation)


def test_without_a_compiler(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _framework(installation)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(PipeReaderUnavailable, match=r"read more slowly: there is no C\+\+ compiler.*g\+\+"):
        pipe_reader.install(installation)


def _framework(installation: Installation) -> None:
    folder = installation.packages / "tensorflow"
    folder.mkdir()
    (folder / "libtensorflow_framework.so.2").touch()
