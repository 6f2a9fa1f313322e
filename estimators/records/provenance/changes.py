"""Run git to find the remote of a repository and its uncommitted changes, within limits of time and size."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from container.system import folders
from estimators.job.redaction import mask_text

#: The maximum size of a patch, in bytes. A larger patch is omitted, because it probably contains data and not code.
DIFF_LIMIT = 2 << 20
#: The maximum size of an untracked file that is added to the patch, and the maximum total size of these files, in
#: bytes.
UNTRACKED_FILE_LIMIT = 256 << 10
UNTRACKED_TOTAL_LIMIT = 1 << 20
_UNTRACKED_SHOWN = 100
_TIMEOUT_S = 20.0


class GitError(Exception):
    """Raised if git is missing, takes too long, or returns an error."""


def inspect(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a repository, including the remote and the patch from the commit to the working tree.

    To include untracked files in the patch, they are added to a temporary index. The repository's own index is not
    changed.

    Args:
        known: The facts that :func:`estimators.records.provenance.repository.head` returned at the job's start. The
            result contains these facts. The patch begins at ``known["commit"]``.

    Raises:
        GitError: git is missing, takes too long, or returns an error (for example for a repository of another user).
    """
    root = str(known["root"])
    facts: dict[str, Any] = {**known, "remote": mask_text(remote_of(root) or "") or None, "dirty": None, "diff": ""}
    facts |= {"diff_truncated": None, "untracked_left_out": []}
    if not known.get("commit"):
        facts["diff_truncated"] = "the repository has no commit yet"
        return facts
    # With these options, the user's git settings (external diff, colours, prefixes) do not change the patch.
    diff = ["diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index"]
    diff += ["--src-prefix=a/", "--dst-prefix=b/"]
    patch = _git(root, [*diff, str(known["commit"]), "--"], limit=DIFF_LIMIT)
    taken, left_out = _untracked(root)
    if taken:
        with folders.temporary("git") as scratch:
            names = scratch / "names"
            names.write_bytes(b"".join(os.fsencode(name) + b"\0" for name in taken))
            (scratch / "objects").mkdir()
            aside = {"GIT_INDEX_FILE": f"{scratch}/index", "GIT_OBJECT_DIRECTORY": f"{scratch}/objects"}
            add = ["--literal-pathspecs", "add", "--intent-to-add", "--pathspec-file-nul"]
            _git(root, [*add, f"--pathspec-from-file={names}"], environment=aside)
            patch += _git(root, diff, environment=aside, limit=DIFF_LIMIT)
    facts["untracked_left_out"] = left_out[:_UNTRACKED_SHOWN]
    facts["dirty"] = bool(patch) or bool(left_out)
    if len(patch) > DIFF_LIMIT:
        facts["diff_truncated"] = f"the changes are larger than {DIFF_LIMIT >> 20} MiB"
    else:
        facts["diff"] = patch.decode("utf-8", "surrogateescape")
    return facts


def remote_of(root: str) -> str | None:
    """Return the URL of the remote ``origin``. If ``origin`` does not exist, return the URL of the first remote.

    Return None if the repository has no remote. ``pip freeze`` selects the remote in the same way.

    Raises:
        GitError: see :func:`inspect`.
    """
    # Exit status 1: no remote exists.
    listing = _git(root, ["config", "--get-regexp", r"remote\..*\.url"], allowed=(0, 1)).decode("utf-8", "replace")
    remotes = dict(line.split(" ", 1) for line in listing.splitlines() if " " in line)
    return remotes.get("remote.origin.url", next(iter(remotes.values()), None))


def _untracked(root: str) -> tuple[list[str], list[str]]:
    """Return the untracked files that git does not ignore.

    Returns:
        The files that fit into the patch, and the files that do not fit.
    """
    listing = _git(root, ["ls-files", "--others", "--exclude-standard", "-z"])
    taken: list[str] = []
    left_out: list[str] = []
    room = UNTRACKED_TOTAL_LIMIT
    for name in sorted(os.fsdecode(part) for part in listing.split(b"\0") if part):
        try:
            size = os.lstat(os.path.join(root, name)).st_size
        except OSError:
            continue  # removed in the meantime
        if name.endswith("/") or size > min(UNTRACKED_FILE_LIMIT, room):
            left_out.append(name)
        else:
            room -= size
            taken.append(name)
    return taken, left_out


def _git(
    root: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    allowed: tuple[int, ...] = (0,),
    limit: int | None = None,
) -> bytes:
    """Run git and return its output.

    If the output is longer than ``limit`` bytes, kill git and return the first ``limit`` + 1 bytes. The caller then
    knows that the limit was exceeded.
    """
    # If this process was started by a git hook, GIT_DIR and similar variables name the repository of the hook. Remove
    # them.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(environment or {})}
    command = ["git", "-C", root, "-c", "core.fsmonitor=false", *arguments]
    with tempfile.TemporaryFile() as errors:
        try:
            git = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=variables
            )
        except FileNotFoundError:
            raise GitError("git is not installed") from None
        timer = threading.Timer(_TIMEOUT_S, git.kill)
        timer.start()
        try:
            with git:
                assert git.stdout is not None
                output = git.stdout.read(-1 if limit is None else limit + 1)
                if limit is not None and len(output) > limit:
                    git.kill()
                    return output
        finally:
            timer.cancel()
        if git.returncode == -signal.SIGKILL:
            raise GitError(f"`git {arguments[0]}`: it took longer than {_TIMEOUT_S:g} s")
        errors.seek(0)
        if git.returncode not in allowed:
            reason = errors.read().decode("utf-8", "replace").strip() or f"exit status {git.returncode}"
            raise GitError(f"`git {arguments[0]}`: {reason}")
        return output
