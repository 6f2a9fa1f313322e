"""The commit that a folder is at, read from git's own files: quick enough for the caller's share."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def head(folder: Path | None) -> dict[str, Any] | None:
    """The repository, commit and branch of a folder or file, from git's files alone (well under a millisecond).

    Returns:
        ``root``, ``commit`` (None before the first one), ``branch`` (None when detached); None outside a repository.
    """
    if folder is None:
        return None
    try:
        for root in (folder, *folder.parents):
            git_dir = _git_dir(root)
            if git_dir is not None:
                return {"root": str(root), **_head_of(git_dir)}
    except (OSError, UnicodeDecodeError):
        return None
    return None


def _git_dir(root: Path) -> Path | None:
    entry = root / ".git"
    if entry.is_dir():
        return entry if (entry / "HEAD").exists() else None
    if entry.is_file():  # a worktree or a submodule: "gitdir: PATH"
        text = entry.read_text(encoding="utf-8").strip()
        if text.startswith("gitdir: "):
            return (root / text[len("gitdir: ") :]).resolve()
    return None


def _head_of(git_dir: Path) -> dict[str, str | None]:
    text = (git_dir / "HEAD").read_text(encoding="utf-8").strip()
    if not text.startswith("ref: "):
        return {"commit": text, "branch": None}
    reference = text[len("ref: ") :]
    common = git_dir
    if (git_dir / "commondir").is_file():
        common = (git_dir / (git_dir / "commondir").read_text(encoding="utf-8").strip()).resolve()
    branch = reference.removeprefix("refs/heads/")
    for base in dict.fromkeys((git_dir, common)):
        loose = base / reference
        if loose.is_file():
            return {"commit": loose.read_text(encoding="utf-8").strip(), "branch": branch}
    packed = common / "packed-refs"
    if packed.is_file():
        for line in packed.read_text(encoding="utf-8").splitlines():
            commit, _, name = line.partition(" ")
            if name == reference:
                return {"commit": commit, "branch": branch}
    return {"commit": None, "branch": branch}
