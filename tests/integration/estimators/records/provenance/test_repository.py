"""Commits and changes of real git repositories."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from estimators.records.provenance import changes, repository

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str, **options) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": f"{what}@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=environment, capture_output=True, check=True, **options
    )
    return done.stdout.decode("utf-8", "surrogateescape").strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "a repo"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print(1)\n")
    (folder / "logo.bin").write_bytes(bytes(range(256)))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def state(folder: Path) -> tuple[str, bytes, set[str]]:
    objects = {str(path) for path in (folder / ".git" / "objects").rglob("*")}
    return git(folder, "status", "--porcelain"), (folder / ".git" / "index").read_bytes(), objects


def test_head_agrees_with_git(repo: Path, tmp_path: Path) -> None:
    commit = git(repo, "rev-parse", "HEAD")
    assert repository.head(repo / "code" / "train.py") == {"root": str(repo), "commit": commit, "branch": "main"}
    tree = tmp_path / "tree"
    git(repo, "worktree", "add", "-q", "-b", "other", str(tree))
    for _ in range(2):  # the second time with packed references
        assert repository.head(repo) == {"root": str(repo), "commit": commit, "branch": "main"}
        assert repository.head(tree) == {"root": str(tree), "commit": commit, "branch": "other"}
        git(repo, "pack-refs", "--all")
    git(repo, "checkout", "-q", "-b", "topic/x")
    assert repository.head(repo)["branch"] == "topic/x"
    git(repo, "checkout", "-q", "--detach")
    assert repository.head(repo) == {"root": str(repo), "commit": commit, "branch": None}

    outside = tmp_path / "outside"
    outside.mkdir()
    assert repository.head(outside) is None
    git(outside, "init", "-q", "-b", "main")
    found = repository.head(outside)
    assert found == {"root": str(outside), "commit": None, "branch": "main"}
    assert "no commit" in changes.inspect(found)["diff_truncated"]


def test_the_patch_makes_the_same_tree_elsewhere(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the user's settings, and below a hook of git."""
    facts = changes.inspect(repository.head(repo))
    assert (facts["dirty"], facts["diff"], facts["diff_truncated"], facts["remote"]) == (False, "", None, None)
    (repo / "code" / "train.py").write_bytes("print('größer')\r\nno newline at the end".encode("latin-1"))
    (repo / "logo.bin").write_bytes(bytes(reversed(range(256))))
    (repo / "staged.py").write_text("staged\n")
    git(repo, "add", "staged.py")
    (repo / "code" / "new é.py").write_text("untracked\n")
    (repo / ".gitignore").write_text("ignored\n")
    (repo / "ignored").write_text("x")
    os.symlink("train.py", repo / "code" / "link.py")
    for name, value in (("diff.noprefix", "true"), ("diff.external", "false"), ("color.ui", "always")):
        git(repo, "config", name, value)
    before = state(repo)
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        hook.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
        facts = changes.inspect(repository.head(repo))
    assert state(repo) == before, "the repository was changed"
    assert facts["dirty"] is True
    assert "diff --git a/code/train.py b/code/train.py\n" in facts["diff"] and "\x1b" not in facts["diff"]

    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", str(repo), str(copy))
    git(copy, "checkout", "-q", "--detach", facts["commit"])
    git(copy, "apply", input=facts["diff"].encode("utf-8", "surrogateescape"))
    for name in ("code/train.py", "logo.bin", "staged.py", "code/new é.py", ".gitignore"):
        assert (copy / name).read_bytes() == (repo / name).read_bytes(), name
    assert os.readlink(copy / "code" / "link.py") == "train.py"
    assert not (copy / "ignored").exists()


def test_changes_are_bounded_and_start_from_the_commit_of_the_launch(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = repository.head(repo)
    (repo / "code" / "train.py").write_text("print(2)\n")
    git(repo, "commit", "-q", "-am", "second, made while the job was starting")
    facts = changes.inspect(known)
    assert facts["commit"] == known["commit"]
    assert "+print(2)" in facts["diff"]

    (repo / "data.bin").write_bytes(os.urandom(changes.UNTRACKED_FILE_LIMIT + 1))
    git(repo, "remote", "add", "origin", "https://me:secret@example.org/x.git")
    facts = changes.inspect(repository.head(repo))
    assert facts["untracked_left_out"] == ["data.bin"]
    assert facts["dirty"] is True
    assert facts["diff"] == ""
    assert facts["remote"] == "https://***@example.org/x.git"
    (repo / "logo.bin").write_bytes(os.urandom(changes.DIFF_LIMIT))
    facts = changes.inspect(repository.head(repo))
    assert facts["diff"] == ""
    assert "larger than 2 MiB" in facts["diff_truncated"]

    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(changes.GitError, match="not installed"):
        changes.inspect(repository.head(repo))
