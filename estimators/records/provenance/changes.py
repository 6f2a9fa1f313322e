"""What git itself must be asked: remotes, and the changes since the commit; bounded in time and size."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.job.redaction import mask_text

#: A patch larger than this many bytes is left out: it would be data, not code.
DIFF_LIMIT = 2 << 20
#: Untracked files up to this many bytes each, and this many in all, go into the patch.
UNTRACKED_FILE_LIMIT = 256 << 10
UNTRACKED_TOTAL_LIMIT = 1 << 20
_UNTRACKED_SHOWN = 100
_TIMEOUT_S = 20.0


class GitError(Exception):
    """git is missing, too slow, or refuses."""


def inspect(known: Mapping[str, Any]) -> dict[str, Any]:
    """Add what takes git itself to the known commit: the remote, and the patch from it to the working tree.

    Nothing in the repository changes: the index that names untracked files is a temporary copy.

    Args:
        known: What :func:`estimators.records.provenance.repository.head` said when the job was started; the patch
        starts
            from its commit.

    Raises:
        GitError: git is missing, too slow, or refuses (for example a repository of another user).
    """
    root = str(known["root"])
    facts: dict[str, Any] = {**known, "remote": None, "dirty": None, "diff": "", "diff_truncated": None}
    facts["untracked_left_out"] = []
    # Exit status 2: there is no remote of that name.
    remote = _git(root, ["remote", "get-url", "origin"], allowed=(0, 2, 128)).decode("utf-8", "replace").strip()
    facts["remote"] = mask_text(remote) or None
    if not known.get("commit"):
        facts["diff_truncated"] = "the repository has no commit yet"
        return facts
    with tempfile.TemporaryDirectory(prefix="fleetfit-git-") as scratch:
        environment = _scratch_index(root, Path(scratch))
        taken, left_out = _untracked(root)
        facts["untracked_left_out"] = left_out[:_UNTRACKED_SHOWN]
        if taken:
            listing = b"".join(os.fsencode(name) + b"\0" for name in taken)
            _git(
                root,
                ["--literal-pathspecs", "add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul"],
                environment=environment,
                stdin=listing,
            )
        # Plumbing options first: a user's own settings (external diff, colours, prefixes) must not shape the patch.
        arguments = ["diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index"]
        arguments += ["--src-prefix=a/", "--dst-prefix=b/", str(known["commit"]), "--"]
        diff, whole = _bounded(root, arguments, environment, DIFF_LIMIT)
    facts["dirty"] = bool(diff) or bool(left_out)
    if whole:
        facts["diff"] = diff.decode("utf-8", "surrogateescape")
    else:
        facts["diff_truncated"] = f"the changes are larger than {DIFF_LIMIT >> 20} MiB"
    return facts


def _scratch_index(root: str, scratch: Path) -> dict[str, str]:
    """Variables by which git works on a copy of the index, and writes new objects into the scratch folder."""
    answer = _git(root, ["rev-parse", "--git-path", "index", "--git-path", "objects"]).decode(
        "utf-8", "surrogateescape"
    )
    index, objects = (Path(root, line) for line in answer.splitlines())
    copy = scratch / "index"
    if index.is_file():
        copy.write_bytes(index.read_bytes())
    (scratch / "objects").mkdir()
    return {
        "GIT_INDEX_FILE": str(copy),
        "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects),
    }


def _untracked(root: str) -> tuple[list[str], list[str]]:
    """Untracked files that are not ignored: those small enough for the patch, and the others."""
    listing = _git(root, ["ls-files", "--others", "--exclude-standard", "-z"])
    taken: list[str] = []
    left_out: list[str] = []
    room = UNTRACKED_TOTAL_LIMIT
    for name in sorted(os.fsdecode(part) for part in listing.split(b"\0") if part):
        path = os.path.join(root, name)
        try:
            size = os.lstat(path).st_size
        except OSError:
            continue  # gone in the meantime
        if name.endswith("/") or size > min(UNTRACKED_FILE_LIMIT, room):
            left_out.append(name)
        else:
            room -= size
            taken.append(name)
    return taken, left_out


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    # GIT_DIR and the like may be set when we run below a git hook; they would point at another repository.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **extra}


def _git(
    root: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    allowed: tuple[int, ...] = (0,),
) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", root, "-c", "core.fsmonitor=false", *arguments],
            input=stdin,
            capture_output=True,
            env=_environment(environment or {}),
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"`git {arguments[0]}` took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode not in allowed:
        reason = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
        raise GitError(f"`git {arguments[0]}`: {reason}")
    return done.stdout if done.returncode == 0 else b""


def _bounded(root: str, arguments: Sequence[str], environment: Mapping[str, str], limit: int) -> tuple[bytes, bool]:
    """Run git and read at most ``limit`` bytes of its output; says whether that was all."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["git", "-C", root, "-c", "core.fsmonitor=false", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(environment),
        )
        assert process.stdout is not None
        timer = threading.Timer(_TIMEOUT_S, process.kill)
        timer.start()
        try:
            with process:
                output = process.stdout.read(limit + 1)
                if len(output) > limit:
                    process.kill()
                    return output[:limit], False
        finally:
            timer.cancel()
        if process.returncode != 0:
            errors.seek(0)
            raise GitError(f"`git {arguments[0]}`: {errors.read().decode('utf-8', 'replace').strip()}")
    return output, True


def remote_of(root: Path) -> str | None:
    """The address of the remote that ``pip freeze`` names: ``origin``, or else the first one.

    Raises:
        GitError: see :func:`inspect`.
    """
    # Exit status 1: there is none.
    listing = _git(str(root), ["config", "--get-regexp", r"remote\..*\.url"], allowed=(0, 1)).decode("utf-8", "replace")
    remotes = dict(line.split(" ", 1) for line in listing.splitlines() if " " in line)
    if not remotes:
        return None
    return remotes.get("remote.origin.url", next(iter(remotes.values()))).strip()
