"""What is left out of a job's code, beside what git itself leaves out."""

from __future__ import annotations

import subprocess
from pathlib import Path

from estimators.client.source import resolve

FILES = """
train.py  data/a.csv  data/keep/b.csv  pkg/data/c.csv  pkg/__init__.py  pkg/model.py  pkg/build/x.o  pkg/notes.txt
pkg/deep/notes.txt  pkg/deep/only.bin  wandb/run/log  node_modules/a/index.js  a.ckpt  best.ckpt  sub/a.ckpt
sub/build/y  sub/build/z.keep  dir.with.dots/a  [odd]/b  sp ace/c  trailing/d  docs/e.md  docs/f.html  #hash  !bang
"""
ABOVE = "node_modules/\n/sub/build/*\n!/sub/build/z.keep\n\\#hash\n\\!bang\n"
TOP = (
    "# a comment\n\n/data/*\n!/data/keep/\n*.ckpt\n!best.ckpt\n**/build/\nwandb\n\\[odd]/\ntrailing/   \ndocs/*.html\n"
)
INNER = "notes.txt\n!deep/notes.txt\ndeep/only.*\n"


def test_it_is_what_git_leaves_out(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    code = repository / "code"
    for name in FILES.strip().replace("\n", "  ").split("  "):
        path = code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (repository / ".gitignore").write_text(ABOVE.replace("/sub", "/code/sub"))
    (code / ".gitignore").write_text(TOP)
    (code / "pkg" / ".gitignore").write_text(INNER)
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    command = ["git", "-C", str(code), "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode()
    taken = {entry.name for entry in resolve("train.py", str(code)).listing.entries}
    assert taken == set(filter(None, listed.split("\0")))
    assert {"best.ckpt", "data/keep/b.csv"} <= taken and "pkg/model.py" in taken
