"""Overlays, made by real pip from packages that the tests build; no network is needed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from container.toolkit.code import pip, requirement_files


class TestReading:
    def read(self, tmp_path: Path, text: str) -> requirement_files.Requirements:
        (tmp_path / "requirements.txt").write_text(text)
        return requirement_files.read(tmp_path / "requirements.txt")

    def test_lines(self, tmp_path: Path) -> None:
        (tmp_path / "wheels").mkdir()
        (tmp_path / "lib").mkdir()
        (tmp_path / "more.txt").write_text("c\n-r requirements.txt\n")
        found = self.read(
            tmp_path,
            "\ufeff# comment\n-i https://index/simple\n--find-links=wheels\n-f https://else\na==1 # why\n"
            "b[extra] \\\n  >=2\n--requirement=more.txt\n-e ./lib\nd @ file:///nowhere/d.whl\n--pre\n",
        )
        assert found.options == (
            "-i https://index/simple",
            f"--find-links {shlex.quote(f'{tmp_path}/wheels')}",
            "-f https://else",
            "--pre",
        )
        assert found.count == 5
        assert [str(path) for path in found.local] == [str(tmp_path / "lib"), "/nowhere/d.whl"]
        assert [name for name, _ in found.contents] == ["requirements.txt", "more.txt"]
        assert not found.hashed

    def test_a_folder_of_wheels_with_a_space_stays_quoted(self, tmp_path: Path) -> None:
        folder = tmp_path / "my code"
        (folder / "my wheels").mkdir(parents=True)
        found = self.read(folder, "--find-links 'my wheels'\n-f 'no wheels'\n-f 'unended\n")
        assert found.options == (f"--find-links '{folder}/my wheels'", "-f 'no wheels'", "-f 'unended")

    @pytest.mark.parametrize("line", ["-r more.txt", "-rmore.txt", "--requirement more.txt", "--constraint=more.txt"])
    def test_includes(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "more.txt").write_text("a\n")
        assert len(self.read(tmp_path, line).contents) == 2

    @pytest.mark.parametrize(
        "line", ["--retries 3", "--require-hashes", "--config-settings a", "-r https://host/x.txt"]
    )
    def test_no_includes(self, tmp_path: Path, line: str) -> None:
        assert len(self.read(tmp_path, line).contents) == 1


@pytest.mark.parametrize(
    ("output", "part"),
    [
        ("ERROR: No module named 'pip'", "ensurepip --upgrade"),
        ("no such option: --report", "older than 22.2"),
        ("NewConnectionError(...)\nERROR: No matching distribution found for x", "cannot be reached"),
        ("Temporary failure in name resolution", "cannot be reached"),
        ("ERROR: ResolutionImpossible: for help visit", "contradict"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("error: subprocess-exited-with-error", "could not be built"),
    ],
)
def test_remedies(output: str, part: str) -> None:
    found: Callable[[str, str], str | None] = pip.remedy
    assert part in (found(output, "/py") or "")
    assert pip.remedy("something else", "/py") is None


def test_error_lines() -> None:
    lines = [
        "Collecting x",
        "",
        "ERROR: first",
        *(f"  detail {i}" for i in range(50)),
        "ERROR: last",
        "[notice] new pip",
    ]
    said = pip.error_lines(lines)
    assert said[0] == "ERROR: first"
    assert said[-1] == "ERROR: last"
    assert len(said) == 21
    assert pip.error_lines(["a", "b"]) == ["a", "b"]
