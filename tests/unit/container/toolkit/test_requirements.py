"""Overlays, made by real pip from packages that the tests build; no network is needed."""

from __future__ import annotations

import base64
import hashlib
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from container.toolkit.code import pip, requirement_files


def wheel(folder: Path, name: str, version: str, *, requires: tuple[str, ...] = (), script: bool = False) -> Path:
    """Write a wheel with one module, which says its version."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"version = {version!r}\ndef main(): print('{name} says {version}')\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name}-tool = {name}:main\n"
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in files.items():
            archive.writestr(inner, text)
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "ffalpha", "1.0")
    wheel(folder, "ffalpha", "2.0", script=True)
    wheel(folder, "ffbeta", "1.0", requires=("ffalpha<2",))
    wheel(folder, "ffgamma", "1.0", requires=("ffalpha>=2",))
    return folder


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
