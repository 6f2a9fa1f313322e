"""The user's code: where it comes from, what is refused, and the command that runs it."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from container.agent.sources.base import SourceError
from container.system.archive import ArchiveBounds, ArchiveError, extract
from container.toolkit.code import code
from container.toolkit.code.code import CodeError, entry_command, is_project, materialize


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "a b%20é"  # which a URL must quote
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "lib" / "util.py").write_text("x = 1\n")
    (folder / "run.sh").write_text('#!/bin/sh\necho "$@"\n')
    return folder


@pytest.fixture
def code_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "ml" / "code"
    folder.mkdir(parents=True)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def pack(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=".")
    return archive


class TestMaterialize:
    @pytest.mark.parametrize("form", ["path", "url", "localhost", "archive", "archive url"])
    def test_every_form(self, source: Path, code_dir: Path, form: str) -> None:
        archive = pack(source, source.parent / "sourcedir.tar.gz")
        location = {
            "path": str(source),
            "url": source.as_uri(),
            "localhost": source.as_uri().replace("file://", "file://localhost"),
            "archive": str(archive),
            "archive url": archive.as_uri(),
        }[form]
        materialize(location, code_dir, "train.py")
        assert names(code_dir) == ["lib", "lib/util.py", "run.sh", "train.py"]
        assert (code_dir / "train.py").stat().st_mtime == pytest.approx((source / "train.py").stat().st_mtime, abs=1)

    def test_a_single_file(self, source: Path, code_dir: Path) -> None:
        materialize(str(source / "train.py"), code_dir, "train.py")
        assert names(code_dir) == ["train.py"]

    def test_code_that_is_there_already_stays(self, source: Path, code_dir: Path) -> None:
        (code_dir / "train.py").write_text("mine")
        materialize(None, code_dir, "train.py")
        materialize(str(source), code_dir, "train.py")
        materialize(str(code_dir), code_dir, "train.py")
        assert (code_dir / "train.py").read_text() == "mine"
        assert names(code_dir) == ["train.py"]

    def test_half_a_copy_is_made_again(self, source: Path, code_dir: Path) -> None:
        (source / "zz").symlink_to("/nowhere/at/all")
        with pytest.raises(CodeError, match="/nowhere/at/all"):
            materialize(str(source), code_dir, "train.py")
        (source / "zz").unlink()
        (code_dir / "train.py").write_text("half")
        materialize(str(source), code_dir, "train.py")
        assert (code_dir / "train.py").read_text() == "print('hello')\n"
        assert names(code_dir) == ["lib", "lib/util.py", "run.sh", "train.py"]

    def test_the_folder_is_made(self, source: Path, tmp_path: Path) -> None:
        materialize(str(source), tmp_path / "new" / "code", "train.py")
        assert (tmp_path / "new" / "code" / "train.py").is_file()

    def test_modes_and_the_executable_bit(self, source: Path, code_dir: Path) -> None:
        (source / "run.sh").chmod(0o640)
        (source / "train.py").chmod(0o755)
        materialize(str(source), code_dir, "run.sh")
        assert (code_dir / "run.sh").stat().st_mode & 0o777 == 0o750
        assert (code_dir / "train.py").stat().st_mode & 0o777 == 0o755

    def test_links(self, source: Path, code_dir: Path, tmp_path: Path) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        (shared / "common.py").write_text("c = 1")
        (shared / "alias.py").symlink_to("common.py")
        (source / "inside.py").symlink_to("lib/util.py")
        (source / "absolute.py").symlink_to(source / "lib" / "util.py")
        (source / "lib" / "up").symlink_to("..")
        (source / "round").symlink_to(f"../{source.name}/lib")
        (source / "shared").symlink_to(shared)
        (source / "common.py").symlink_to(shared / "common.py")
        (source / ".#lock").symlink_to("me@host.12:34")
        materialize(str(source), code_dir, "train.py")
        assert os.readlink(code_dir / "inside.py") == "lib/util.py"
        assert os.readlink(code_dir / "absolute.py") == "lib/util.py"
        assert os.readlink(code_dir / "lib" / "up") == ".."
        assert os.readlink(code_dir / "round") == "lib"
        assert not (code_dir / "shared").is_symlink()
        assert (code_dir / "shared" / "common.py").read_text() == "c = 1"
        assert os.readlink(code_dir / "shared" / "alias.py") == "common.py"
        assert not (code_dir / "common.py").is_symlink()
        assert os.readlink(code_dir / ".#lock") == "me@host.12:34"

    @pytest.mark.parametrize(
        ("name", "message"),
        [("parent", "contains the link"), ("nowhere", "does not exist"), ("pipe", "pipe, socket or device")],
    )
    def test_what_cannot_be_copied(self, source: Path, code_dir: Path, name: str, message: str) -> None:
        if name == "pipe":
            os.mkfifo(source / name)
        else:
            (source / name).symlink_to({"parent": source.parent, "nowhere": "/nowhere"}[name])
        with pytest.raises(CodeError, match=message) as caught:
            materialize(str(source), code_dir, "train.py")
        assert str(source / name) in str(caught.value)

    @pytest.mark.parametrize("name", ["container/__init__.py", "estimators.py"])
    def test_our_names_are_refused(self, source: Path, code_dir: Path, name: str) -> None:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).touch()
        name = name.partition("/")[0]
        for location in (str(source), str(pack(source, source.parent / "s.tar.gz"))):
            with pytest.raises(CodeError, match=name) as caught:
                materialize(location, code_dir, "train.py")
            assert "Rename" in str(caught.value)

    @pytest.mark.parametrize(
        ("location", "message"),
        [
            ("http://host/code.tar.gz", "http://"),
            ("/nowhere/at/all", "does not exist"),
            ("file://nowhere/code", "three slashes"),
            ("code", "relative"),
        ],
    )
    def test_a_location_that_is_none(self, code_dir: Path, location: str, message: str) -> None:
        with pytest.raises(CodeError, match=message) as caught:
            materialize(location, code_dir, "train.py")
        assert location in str(caught.value)

    def test_a_folder_that_contains_the_target(self, tmp_path: Path, code_dir: Path) -> None:
        with pytest.raises(CodeError, match="contains"):
            materialize(str(tmp_path), code_dir, "train.py")

    def test_a_disk_that_cannot_be_written(self, source: Path) -> None:
        with pytest.raises(CodeError, match="/proc/nothing"):
            materialize(str(source), Path("/proc/nothing/code"), "train.py")

    def test_a_disk_that_is_full(self) -> None:
        s3 = SimpleNamespace(get_object=lambda **_: {"Body": io.BytesIO(bytes(3 << 20))})
        with pytest.raises(SourceError, match=r"cannot be written to /dev: No space left on device. Make room there."):
            code._download(s3, "s3://bucket/sourcedir.tar.gz", Path("/dev/full"))


def entry(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


class TestArchives:
    """Archives that nobody vouches for."""

    def archive(self, tmp_path: Path, *entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> str:
        path = tmp_path / "sourcedir.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for each in entries:
                info, content = each if isinstance(each, tuple) else (each, b"")
                info.size = len(content) or info.size
                tar.addfile(info, io.BytesIO(content) if content else None)
        return str(path)

    @pytest.mark.parametrize(
        "evil",
        [
            entry("/tmp/evil"),
            entry("../evil"),
            entry("a/../../evil"),
            entry("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
            entry("link", type=tarfile.SYMTYPE, linkname="../evil"),
            entry("a/link", type=tarfile.SYMTYPE, linkname="../../evil"),
            entry("hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
            entry("hard", type=tarfile.LNKTYPE, linkname="../evil"),
            entry("hard", type=tarfile.LNKTYPE, linkname="nothing"),
            entry("fifo", type=tarfile.FIFOTYPE),
            entry("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
            entry("block", type=tarfile.BLKTYPE),
        ],
        ids=lambda info: f"{info.name}-{info.linkname}",
    )
    def test_an_entry_that_leaves_the_folder(self, tmp_path: Path, code_dir: Path, evil: tarfile.TarInfo) -> None:
        location = self.archive(tmp_path, (entry("train.py"), b"x"), evil)
        with pytest.raises(CodeError) as caught:
            materialize(location, code_dir, "train.py")
        assert location in str(caught.value)
        assert repr(evil.name) in str(caught.value)
        assert not (tmp_path / "evil").exists()
        assert not (tmp_path / "ml" / "evil").exists()
        assert not any(path.is_symlink() for path in code_dir.rglob("*"))

    def test_writing_through_a_link(self, tmp_path: Path, code_dir: Path) -> None:
        (tmp_path / "victim").mkdir()
        link = entry("a", type=tarfile.SYMTYPE, linkname=str(tmp_path / "victim"))
        with pytest.raises(CodeError, match="'a'"):
            materialize(self.archive(tmp_path, link, (entry("a/evil"), b"x")), code_dir, "train.py")
        assert list((tmp_path / "victim").iterdir()) == []

    def test_links_that_leave_together(self, tmp_path: Path, code_dir: Path) -> None:
        # Each stays inside as text; followed, the second goes up twice and down once.
        links = (
            entry("d/e/c", type=tarfile.SYMTYPE, linkname="../.."),
            entry("out", type=tarfile.SYMTYPE, linkname="d/e/c/../x"),
        )
        with pytest.raises(CodeError, match="'out'"):
            materialize(self.archive(tmp_path, (entry("train.py"), b"x"), *links), code_dir, "train.py")

    @pytest.mark.parametrize(
        "second",
        [entry("l/m", type=tarfile.SYMTYPE, linkname="x"), entry("m", type=tarfile.SYMTYPE, linkname="x" * 5000)],
    )
    def test_no_link_that_leaves_stays_when_another_cannot_be_made(
        self, tmp_path: Path, code_dir: Path, second: tarfile.TarInfo
    ) -> None:
        first = entry("l", type=tarfile.SYMTYPE, linkname=str(tmp_path))
        with pytest.raises(CodeError):
            materialize(self.archive(tmp_path, (entry("train.py"), b"x"), first, second), code_dir, "train.py")
        assert not any(path.is_symlink() for path in code_dir.rglob("*"))

    def test_good_links(self, tmp_path: Path, code_dir: Path) -> None:
        location = self.archive(
            tmp_path,
            entry("./d", type=tarfile.DIRTYPE, mode=0o500),
            (entry("./d/train.py", mode=0o4644), b"first"),
            (entry("./d/train.py", mode=0o4644), b"second"),
            entry("hard", type=tarfile.LNKTYPE, linkname="d/train.py"),
            entry("soft", type=tarfile.SYMTYPE, linkname="d/train.py"),
            entry("late", type=tarfile.SYMTYPE, linkname="not/there"),
        )
        materialize(location, code_dir, "d/train.py")
        assert (code_dir / "d" / "train.py").read_bytes() == b"second"
        assert (code_dir / "d" / "train.py").stat().st_mode & 0o7777 == 0o644
        assert (code_dir / "hard").samefile(code_dir / "d" / "train.py")
        assert os.readlink(code_dir / "soft") == "d/train.py"
        assert os.readlink(code_dir / "late") == "not/there"

    def test_bounds(self, tmp_path: Path) -> None:
        location = Path(self.archive(tmp_path, *((entry(f"f{i}"), b"x" * 1000) for i in range(20))))
        extract(location, tmp_path / "fine")
        with pytest.raises(ArchiveError, match="more than 10 entries"):
            extract(location, tmp_path / "a", ArchiveBounds(entries=10))
        with pytest.raises(ArchiveError, match="more than 5,000 bytes"):
            extract(location, tmp_path / "b", ArchiveBounds(5000))

    def test_folders_in_each_other(self, tmp_path: Path, code_dir: Path) -> None:
        fine = "/".join("d" * 127) + "/train.py"
        materialize(self.archive(tmp_path, (entry(fine), b"x")), code_dir, fine)
        for deep in ("/".join("d" * 128) + "/train.py", "/".join("d" * 3000)):
            with pytest.raises(CodeError, match="more than 128 folders deep"):
                materialize(self.archive(tmp_path, (entry(deep), b"x")), tmp_path / "b", "train.py")
        tmp_path.joinpath("folder", *["d"] * 130).mkdir(parents=True)
        (tmp_path / "folder" / "train.py").touch()
        with pytest.raises(CodeError, match="folders nested more than 128 deep"):
            materialize(str(tmp_path / "folder"), tmp_path / "c", "train.py")

    def test_a_bomb_in_a_header(self, tmp_path: Path) -> None:
        location = Path(self.archive(tmp_path, (entry("long", type=tarfile.XHDTYPE), b"\0" * (20 << 20))))
        with pytest.raises(ArchiveError, match="headers"):
            extract(location, tmp_path / "out")

    def test_headers_without_end(self, tmp_path: Path, code_dir: Path) -> None:
        headers = [entry("h", type=tarfile.GNUTYPE_LONGNAME) for _ in range(3000)]
        with pytest.raises(CodeError, match="too many headers"):
            materialize(self.archive(tmp_path, *headers), code_dir, "train.py")

    @pytest.mark.parametrize("damage", ["cut", "garbage", "not gzip", "bz2", "empty"])
    def test_a_damaged_archive(self, source: Path, code_dir: Path, damage: str) -> None:
        path = pack(source, source.parent / "sourcedir.tar.gz")
        content = path.read_bytes()
        path.write_bytes(
            {
                "cut": content[: len(content) // 2],
                "garbage": content[:20] + os.urandom(200),
                "not gzip": b"hello",
                "bz2": b"BZh91AY",
                "empty": b"",
            }[damage]
        )
        with pytest.raises(CodeError, match=r"sourcedir\.tar\.gz") as caught:
            materialize(str(path), code_dir, "train.py")
        assert "Pack" in str(caught.value)


class TestEntryCommand:
    ARGS = ("--a", "b c", "", "$HOME", 'q"')

    def command(self, program: str, folder: Path) -> tuple[str, ...]:
        command = entry_command(program, folder, self.ARGS, "/py")
        assert command[-len(self.ARGS) :] == self.ARGS
        return command[: -len(self.ARGS)]

    def test_scripts(self, source: Path) -> None:
        assert self.command("train.py", source) == ("/py", "train.py")
        assert self.command("./lib/util.py", source) == ("/py", "lib/util.py")
        assert self.command(str(source / "train.py"), source) == ("/py", "train.py")
        assert self.command("run.sh", source) == ("/bin/sh", "./run.sh")

    @pytest.mark.parametrize(
        ("first", "mode", "expected"),
        [
            ("", 0o644, ("/bin/sh", "./x.sh")),
            ("#!/bin/sh\n", 0o644, ("/bin/sh", "./x.sh")),
            ("#! /usr/bin/env sh\n", 0o644, ("/bin/sh", "./x.sh")),
            ("#!/bin/bash\n", 0o755, ("./x.sh",)),
            ("#!/bin/sh -e\n", 0o755, ("./x.sh",)),
            ("#!/usr/bin/env bash\n", 0o644, ("/usr/bin/env", "bash", "./x.sh")),
            ("#!/bin/bash -eu\n", 0o644, ("/bin/bash", "-eu", "./x.sh")),
        ],
    )
    def test_first_lines(self, tmp_path: Path, first: str, mode: int, expected: tuple[str, ...]) -> None:
        for name in ("x.sh", "x"):
            (tmp_path / name).write_text(first + "echo\n")
            (tmp_path / name).chmod(mode)
            assert self.command(name, tmp_path) == (*expected[:-1], f"./{name}")

    def test_first_lines_that_cannot_work(self, tmp_path: Path) -> None:
        (tmp_path / "x.sh").write_bytes(b"#!/bin/bash\r\necho\r\n")
        with pytest.raises(CodeError, match="Windows line endings"):
            self.command("x.sh", tmp_path)
        (tmp_path / "x.sh").write_bytes(b"#!/opt/none/bash\necho\n")
        with pytest.raises(CodeError, match="/opt/none/bash"):
            self.command("x.sh", tmp_path)

    def test_a_binary(self, tmp_path: Path) -> None:
        (tmp_path / "prog").write_bytes(Path("/bin/true").read_bytes())
        (tmp_path / "prog").chmod(0o755)
        assert self.command("prog", tmp_path) == ("./prog",)

    def test_modules(self, source: Path) -> None:
        (source / "pkg" / "sub").mkdir(parents=True)
        (source / "pkg" / "__main__.py").touch()
        (source / "pkg" / "train.py").touch()
        (source / "pkg" / "sub" / "__main__.py").touch()
        assert self.command("pkg", source) == ("/py", "-m", "pkg")
        assert self.command("pkg/", source) == ("/py", "-m", "pkg")
        assert self.command("pkg/sub", source) == ("/py", "-m", "pkg.sub")
        assert self.command("pkg.sub", source) == ("/py", "-m", "pkg.sub")
        assert self.command("pkg.train", source) == ("/py", "-m", "pkg.train")
        assert self.command("pkg/train.py", source) == ("/py", "pkg/train.py")

    @pytest.mark.parametrize("file", ["setup.py", "pyproject.toml"])
    def test_projects(self, source: Path, file: str) -> None:
        assert not is_project(source)
        (source / file).write_text("" if file == "setup.py" else "[build-system]\nrequires = []\n")
        assert is_project(source)
        assert self.command("train.py", source) == ("/py", "-m", "train")
        assert self.command("lib/util.py", source) == ("/py", "-m", "lib.util")
        (source / "src" / "deep").mkdir(parents=True)
        (source / "src" / "deep" / "fit.py").touch()
        assert self.command("deep/fit.py", source) == ("/py", "-m", "deep.fit")
        assert self.command("deep.fit", source) == ("/py", "-m", "deep.fit")
        assert self.command("run.sh", source) == ("/bin/sh", "./run.sh")
        (source / "v1.2.py").touch()
        assert self.command("v1.2.py", source) == ("/py", "v1.2.py")

    def test_a_pyproject_of_tool_settings_is_no_project(self, source: Path) -> None:
        (source / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
        assert self.command("train.py", source) == ("/py", "train.py")

    def test_a_missing_program(self, source: Path) -> None:
        for program in ("trian.py", "trainer.fit", "trian.sh", "bin/tool"):
            with pytest.raises(CodeError) as caught:
                self.command(program, source)
            text = str(caught.value)
            assert repr(program) in text
            assert "'lib/', 'run.sh', 'train.py'" in text
        with pytest.raises(CodeError, match=r"Did you mean 'train\.py'"):
            self.command("trian.py", source)
        with pytest.raises(CodeError, match="is a folder without"):
            self.command("lib", source)

    @pytest.mark.parametrize("program", ["", ".", "..", "../train.py", "/etc/passwd", "a/../../b.py"])
    def test_a_program_outside(self, source: Path, program: str) -> None:
        with pytest.raises(CodeError, match="inside"):
            self.command(program, source)

    def test_an_empty_or_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CodeError, match="empty"):
            self.command("train.py", tmp_path)
        with pytest.raises(CodeError, match="does not exist"):
            self.command("train.py", tmp_path / "nowhere")
