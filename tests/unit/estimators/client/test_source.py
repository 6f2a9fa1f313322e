"""What an entry point means, and the snapshot of the code."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from estimators.client import source as sources
from estimators.client.source import Source, resolve
from estimators.job.errors import ConfigurationError, UnsupportedError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "run.sh", "pkg/__init__.py", "pkg/task.py", "pkg/sub/__main__.py", "requirements.txt"):
        write(f"code/{name}")
    return tmp_path


def write(name: str, text: str = "", mode: int = 0o644) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def copied(code: Source, target: str = "") -> list[str]:
    """The files of the snapshot."""
    place = Path(target or tempfile.mkdtemp(dir="."), "snapshot")
    code.copy_to(place)
    return sorted(str(item.relative_to(place)) for item in place.rglob("*") if not item.is_dir())


@pytest.mark.parametrize(
    ("entry", "program"),
    [
        ("train.py", "train.py"),
        ("./train.py", "train.py"),
        ("run.sh", "run.sh"),
        ("pkg/task.py", "pkg/task.py"),
        ("pkg.task", "pkg.task"),
        ("pkg.sub", "pkg.sub"),
        ("pkg/sub", "pkg.sub"),
        ("train", "train"),
    ],
)
def test_programs_of_a_source_folder(entry: str, program: str) -> None:
    assert resolve(entry, "code").program == program


def test_absolute_entry_points_inside_are_made_relative(folder: Path) -> None:
    assert resolve(str(folder / "code/train.py"), str(folder / "code")).program == "train.py"


def test_executables_run_too() -> None:
    write("code/tool", "\x7fELF", 0o755)
    write("code/script", "#!/bin/sh\n")
    assert resolve("tool", "code").program == "tool"
    assert resolve("script", "code").program == "script"
    write("code/setup.py")
    write("code/plain", "x")
    assert resolve("plain", "code").program == "plain"  # a module of the package, as for SageMaker's toolkit


@pytest.mark.parametrize(
    ("entry", "program", "files"),
    [("code/train.py", "train.py", ["train.py"]), ("code/pkg/sub", "sub", ["sub/__main__.py"])],
)
def test_an_entry_point_alone_is_taken_alone(entry: str, program: str, files: list[str]) -> None:
    code = resolve(entry)
    assert code.program == program
    assert copied(code) == files


def test_the_snapshot_is_whole_and_private() -> None:
    write("code/bin/tool", "x", 0o755)
    for skipped in (".git/config", "__pycache__/a.pyc", "pkg/__pycache__/a.pyc", ".ipynb_checkpoints/a", ".venv/a"):
        write(f"code/{skipped}")
    Path("code/empty").mkdir()
    assert copied(resolve("train.py", "code"), ".") == [
        "bin/tool",
        "pkg/__init__.py",
        "pkg/sub/__main__.py",
        "pkg/task.py",
        "requirements.txt",
        "run.sh",
        "train.py",
    ]
    assert Path("snapshot/empty").is_dir()
    for name, mode in (("train.py", 0o600), ("bin/tool", 0o700), ("pkg", 0o700)):
        assert stat.S_IMODE(os.stat(f"snapshot/{name}").st_mode) == mode
    assert int(os.stat("snapshot/train.py").st_mtime) == int(os.stat("code/train.py").st_mtime)


def test_dependencies_lie_beside_the_entry_point() -> None:
    write("libs/common/a.py")
    write("one.py")
    files = copied(resolve("train.py", "code", ("libs/common", "one.py")))
    assert {"common/a.py", "one.py", "train.py"} <= set(files)


def test_links_inside_stay_links_and_links_outside_are_followed() -> None:
    write("elsewhere/data.txt", "x")
    os.symlink("train.py", "code/inner")
    os.symlink(os.path.abspath("code/pkg"), "code/inner_folder")
    os.symlink("../elsewhere", "code/outer")
    os.symlink("../elsewhere/data.txt", "code/outer.txt")
    resolve("train.py", "code").copy_to("snapshot")
    assert os.readlink("snapshot/inner") == "train.py"
    assert os.readlink("snapshot/inner_folder") == "pkg"
    assert not os.path.islink("snapshot/outer")
    assert Path("snapshot/outer/data.txt").read_text() == "x"
    assert Path("snapshot/outer.txt").read_text() == "x"


def test_links_that_lead_nowhere_are_left_out_with_a_warning() -> None:
    os.symlink("me@host.1234", "code/.#train.py")
    code = resolve("train.py", "code")
    assert "is left out: it links to me@host.1234, which does not exist" in code.warnings()[0]
    assert ".#train.py" not in copied(code)


def test_circles_are_refused() -> None:
    os.symlink("..", "code/up")
    with pytest.raises(ConfigurationError, match=r"a folder that contains the link\. Remove the link"):
        _ = resolve("train.py", "code").listing


def test_links_within_a_circle_inside_stay_links() -> None:
    os.symlink(".", "code/pkg/self")
    resolve("train.py", "code").copy_to("snapshot")
    assert os.readlink("snapshot/pkg/self") == "."


def test_pipes_and_sockets_are_left_out_and_told() -> None:
    os.mkfifo("code/pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("code/socket")
        code = resolve("train.py", "code")
        pipe, sock = code.warnings()
    assert "code/pipe is left out: a named pipe cannot be part of a job's code." in pipe
    assert "code/socket is left out: a socket" in sock
    assert not {"pipe", "socket"} & set(copied(code))
    os.mkfifo("alone")
    with pytest.raises(ConfigurationError, match="is a named pipe"):
        _ = resolve("train.py", "code", ("alone",)).listing


def test_a_file_that_goes_meanwhile_is_no_ones_failure() -> None:
    write("code/passing")
    code = resolve("train.py", "code")
    assert "passing" in {entry.name for entry in code.listing.entries}
    os.unlink("code/passing")
    files = copied(code)
    assert "passing" not in files and "train.py" in files


def test_an_ignore_file_of_ours_counts_alone() -> None:
    write("code/.gitignore", "pkg/\n")
    write("code/.fleetfitignore", "# data\ndata/\n*.ckpt\n!keep.ckpt\n")
    for name in ("data/a", "x.ckpt", "keep.ckpt", "pkg/y.ckpt"):
        write(f"code/{name}")
    code = resolve("train.py", "code")
    files = set(copied(code))
    assert {"pkg/task.py", "keep.ckpt"} <= files
    assert not {"data/a", "x.ckpt", "pkg/y.ckpt"} & files
    assert code.notes() == ["left out of the job's code by .fleetfitignore: data/, pkg/y.ckpt, x.ckpt"]
    assert code.warnings() == []


def test_the_entry_point_is_taken_whatever_is_ignored() -> None:
    write("code/.gitignore", "pkg/\ntrain.py\n")
    code = resolve("pkg/task.py", "code")
    assert [name for name in copied(code) if name.endswith(".py")] == ["pkg/__init__.py", "pkg/task.py"]
    [said] = code.warnings()
    assert "train.py" in said and "because of .gitignore" in said
    assert "pkg/task.py" in copied(resolve("pkg.task", "code"))


def test_an_ignored_package_is_told() -> None:
    write("code/.gitignore", "models/\nlib/\nbuild/\nmy-venv/\n*.txt\n")
    write("dep/.gitignore", "data/\n")
    for name in ("code/models/net.py", "code/pkg/lib/a.py", "code/build/lib/b.py", "code/my-venv/c.py"):
        write(name)
    write("dep/data/d.py")
    [said] = resolve("train.py", "code", ("dep",)).warnings()
    assert said.startswith(
        "source_dir: models/, pkg/lib/, requirements.txt, dep/data/ are not part of the job's code, because of .gitig"
    )
    (Path("code") / ".gitignore").rename("code/.fleetfitignore")  # which is written for jobs
    assert resolve("train.py", "code").warnings() == [
        said.replace("models/, pkg/lib/, requirements.txt, dep/data/ are", "requirements.txt is").replace(
            "because of .gitignore", "because of .fleetfitignore"
        )
    ]


def test_secrets_in_env_are_sent_only_where_they_are_named() -> None:
    write("code/.env", "KEY=secret")
    code = resolve("train.py", "code")
    assert ".env" not in copied(code)
    [said] = code.warnings()
    assert ".env is not part of the job's code, because the file may contain secrets" in said
    write("code/.fleetfitignore", "!.env\n")
    named = resolve("train.py", "code")
    assert ".env" in copied(named) and named.warnings() == []


def test_a_secret_is_taken_back_by_its_own_name_only() -> None:
    write("code/.gitignore", "/*\n!/src/\n!/train.py\n!src/**\n")
    write("code/src/.env")
    write("code/src/a.py")
    files = copied(resolve("train.py", "code"))
    assert "src/a.py" in files and "src/.env" not in files


def test_what_is_ignored_can_be_named_as_a_dependency() -> None:
    write("code/.env", "KEY=1")
    write("code/.gitignore", "lib/\n")
    write("code/lib/a.py")
    assert {".env", "lib/a.py"} <= set(copied(resolve("train.py", "code", ("code/.env", "code/lib"))))


def test_the_entry_point_is_taken_also_behind_a_link_and_as_a_folder() -> None:
    write("code/.gitignore", "build/\n*.pyc\n__main__.py\n__init__.py\n")
    write("code/build/t.py")
    os.symlink("build/t.py", "code/linked.py")
    copied(resolve("linked.py", "code"), ".")
    assert Path("snapshot/linked.py").exists()
    write("code/app/__main__.py")
    assert "app/__main__.py" in copied(resolve("code/app"))


def test_a_link_to_what_is_ignored_is_told() -> None:
    write("code/.gitignore", "build/\n")
    write("code/build/x.bin")
    os.symlink("build/x.bin", "code/latest")
    code = resolve("train.py", "code")
    assert "latest" not in copied(code)
    assert any("code/latest is left out: it links to build/x.bin, which .gitignore" in said for said in code.warnings())


def test_odd_ignore_files_are_read_as_far_as_they_can_be() -> None:
    Path("code/.gitignore").write_bytes(b"\xef\xbb\xbf*.a\r\n!\n[z-a]x\n\xff*\n*.b\n")
    for name in ("x.a", "x.b", "x.c"):
        write(f"code/{name}")
    os.symlink("loop", "code/loop")
    os.mkfifo("code/pkg/.gitignore")
    assert [name for name in copied(resolve("train.py", "code")) if name.startswith("x.")] == ["x.c"]


def test_a_folder_that_its_repository_ignores_is_a_jobs_all_the_same() -> None:
    Path("repo/.git").mkdir(parents=True)
    write("repo/.gitignore", "/experiments/\nwandb/\n")
    for name in ("train.py", "wandb/run"):
        write(f"repo/experiments/{name}")
        write(f"repo/src/{name}")
    # Nothing of that file counts in the ignored folder.
    assert copied(resolve("train.py", "repo/experiments")) == ["train.py", "wandb/run"]
    assert copied(resolve("train.py", "repo/src")) == ["train.py"]


def test_the_folder_of_the_records_is_not_entered(folder: Path) -> None:
    write("code/home/jobs/old/x")
    code = resolve("train.py", "code", without=(folder / "code/home",))
    assert not any(entry.name.startswith("home") for entry in code.listing.entries)
    assert "home" not in code.listing.folders


@pytest.mark.parametrize("home", ["", "runs/"])
def test_records_of_other_homes_are_left_out_and_told(home: str, folder: Path) -> None:
    """Otherwise each job there would hold a copy of all jobs before it."""
    for name in ("lock", "request.json", "status.json"):
        write(f"code/{home}jobs/old/{name}")
    write(f"code/{home}notes.txt")
    write("code/api/jobs/submit/request.json")  # a fixture of the user's own
    listing = resolve("train.py", "code").listing
    names = {entry.name for entry in listing.entries}
    assert not any("jobs/old" in name for name in names)
    assert {f"{home}notes.txt", "api/jobs/submit/request.json"} <= names
    assert [one for one in listing.left_out if f"code/{home}jobs is left out" in one and "records of fleetfit" in one]


def test_a_folder_of_jobs_that_cannot_be_read_is_no_reason_to_fail_where_it_is_ignored() -> None:
    write("code/.fleetfitignore", "jobs/\n")
    write("code/data/jobs/x")
    Path("code/loop").mkdir()
    Path("code/loop/jobs").symlink_to("jobs")
    Path("code/data/jobs").chmod(0)
    listing = resolve("train.py", "code").listing
    Path("code/data/jobs").chmod(0o700)
    assert "data" in listing.folders and "data/jobs" not in listing.folders


def test_large_sources_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LARGE_BYTES", 1000)
    write("code/weights/big.bin", "x" * 5000)
    (warning,) = resolve("train.py", "code").warnings()
    assert "largest: weights (0 MB)" in warning
    assert "Pass data as a channel" in warning


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((None, "code"), "entry_point is missing"),
        (("tran.py", "code"), r"entry_point 'tran\.py' does not exist in source_dir .*\. Did you mean 'train\.py'\?"),
        (("code/train.py", "code"), "Give the path relative to source_dir: entry_point='train.py'."),
        (("../x.py", "code"), "is outside of source_dir"),
        (("/etc/passwd", "code"), "is outside of source_dir"),
        (("pkg", "code"), "is a folder without a __main__.py"),
        (("pkg.nothing", "code"), "does not exist in source_dir"),
        (("requirements.txt", "code"), r"is neither a Python script \(\.py\), a shell script \(\.sh\)"),
        (("train.py", "cod"), r"source_dir 'cod' does not exist .*\. Did you mean 'code'\?"),
        (("train.py", "code/train.py"), "is not a folder. For a single file, give entry_point only"),
        (("train.py",), "entry_point 'train.py' does not exist"),
        (("pkg.task",), "A module needs source_dir"),
        (("code",), "is a folder without a __main__.py. Set entry_point to a script"),
        (("train.py", "code", ("missing",)), "dependencies: 'missing' does not exist"),
        (("train.py", "code", ("code/train.py",)), "would overwrite 'train.py' of the source"),
    ],
)
def test_mistakes_are_named(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        resolve(*arguments)


@pytest.mark.parametrize("name", ["code/container/__init__.py", "code/estimators.py", "code/container.so"])
def test_our_own_packages_are_never_hidden(name: str) -> None:
    write(name)
    with pytest.raises(ConfigurationError, match="would hide fleetfit's own package"):
        resolve("train.py", "code")


@pytest.mark.parametrize(
    "name", ["code/container/Dockerfile", "code/estimators/data.csv", "code/container.yaml", "code/container.config.py"]
)
def test_a_folder_that_is_no_package_hides_nothing(name: str) -> None:
    write(name)
    assert resolve("train.py", "code").program == "train.py"


def test_a_dependency_cannot_hide_them_either() -> None:
    write("libs/container/__init__.py")
    with pytest.raises(ConfigurationError, match="would hide fleetfit's own package"):
        resolve("train.py", "code", ("libs/container",))


def test_code_on_s3_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="only jobs on SageMaker can use code on S3"):
        resolve("train.py", "s3://bucket/sourcedir.tar.gz")
