"""Read the current commit of a git repository from git's files.

Unlike running git, this is fast enough for ``fit()``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def head(folder: Path | None) -> dict[str, Any] | None:
    """Return the git repository that contains a folder or file, with its current commit and branch.

    Only git's files are read, which takes less than a millisecond.

    Returns:
        A dict with ``root``, ``commit`` (None before the first commit) and ``branch`` (None if the head is detached).
        None if the folder is not in a repository.
    """
    try:
        for root in (folder, *folder.parents) if folder is not None else ():
            git_dir = root / ".git"
            if git_dir.is_file():  # a worktree or a submodule
                git_dir = root / git_dir.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
            if (git_dir / "HEAD").is_file():
                return {"root": str(root), **_head_of(git_dir)}
    except (OSError, UnicodeDecodeError):
        pass
    return None


def _head_of(git_dir: Path) -> dict[str, str | None]:
    text = (git_dir / "HEAD").read_text(encoding="utf-8").strip()
    if not text.startswith("ref: "):
        return {"commit": text, "branch": None}
    reference = text.removeprefix("ref: ")
    branch = reference.removeprefix("refs/heads/")
    common = git_dir
    if (git_dir / "commondir").is_file():
        common = git_dir / (git_dir / "commondir").read_text(encoding="utf-8").strip()
    for loose in (git_dir / reference, common / reference):
        if loose.is_file():
            return {"commit": loose.read_text(encoding="utf-8").strip(), "branch": branch}
    if (common / "packed-refs").is_file():
        for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
            commit, _, name = line.partition(" ")
            if name == reference:
                return {"commit": commit, "branch": branch}
    return {"commit": None, "branch": branch}
