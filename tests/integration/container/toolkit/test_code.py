"""The user's code as processes see it: what its copying imports, and what arguments a program gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from container.toolkit.code.code import entry_command


def test_it_imports_nothing_heavy(tmp_path: Path) -> None:
    many, code = tmp_path / "many", tmp_path / "code"
    many.mkdir()
    for number in range(200):
        (many / f"m{number}.py").write_text("x")
    script = (
        "import sys, pathlib\n"
        "from container.toolkit.code import code\n"
        f"code.materialize({str(many)!r}, pathlib.Path({str(code)!r}), 'm0.py')\n"
        "assert not {'tarfile', 'shutil', 'hashlib', 'subprocess', 'tempfile'} & set(sys.modules)\n"
    )
    env = {"PYTHONPATH": os.fspath(Path(__file__).parents[4]), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("run.sh", 'printf "%s|" "$@"\n'),
        ("train.py", "import sys\nprint(*sys.argv[1:], sep='|')\n"),
        ("tool", '#!/usr/bin/env bash\nprintf "%s|" "$@"\n'),
    ],
)
def test_the_arguments_arrive(program: str, text: str, tmp_path: Path) -> None:
    (tmp_path / program).write_text(text)
    args = ("--a", "b c", "", "$HOME", "new\nline", "é", "*")
    argv = entry_command(program, tmp_path, args, sys.executable)
    out = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert out.strip().rstrip("|") == "|".join(args)
