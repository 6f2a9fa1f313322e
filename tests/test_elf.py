"""The libraries that a compiled module asks for."""

import _ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from estimators.cli import elf


def test_a_module_of_python_agrees_with_readelf() -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    path = Path(_ctypes.__file__)
    text = subprocess.run([readelf, "-d", "--wide", str(path)], capture_output=True, text=True, check=True).stdout
    expected = [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
    assert list(elf.dynamic(path).needed) == expected
    assert any(name.startswith("libc.so") for name in expected)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_search_path_is_relative_to_the_library(tmp_path: Path) -> None:
    library = tmp_path / "sub" / "libx.so"
    library.parent.mkdir()
    source = tmp_path / "x.c"
    source.write_text("int x(void) { return 1; }\n")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/../lib:/opt/lib", "-o", str(library), str(source)], check=True
    )
    assert elf.dynamic(library).search == (library.parent / "../lib", Path("/opt/lib"))


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 100, b"\x7fELF\x02\x01" + b"\0" * 58, b"\x7fELF\x01\x01" + b"\0" * 58]
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="file"):
        elf.dynamic(path)


def test_a_library_cut_anywhere_is_an_error_of_ours(tmp_path: Path) -> None:
    data = Path(_ctypes.__file__).read_bytes()
    path = tmp_path / "cut.so"
    for size in range(0, len(data), max(1, len(data) // 200)):
        path.write_bytes(data[:size])
        try:
            elf.dynamic(path)
        except ValueError:
            continue
