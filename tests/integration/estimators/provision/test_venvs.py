"""Real venvs, and which Pythons fit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from estimators.provision import venvs
from estimators.provision.packages import Installation

ROOT = Path(__file__).resolve().parents[4]


def test_a_venv_of_the_user_is_used_as_it_is_and_an_unfinished_one_of_ours_made_anew(
    tmp_path: Path, real_venv: Installation
) -> None:
    assert venvs.check_ownership(real_venv.prefix, ours=False)
    prefix = tmp_path / "venv"
    (prefix / "lib" / "python3.9" / "site-packages").mkdir(parents=True)
    (prefix / ".fleetfit").mkdir()
    (prefix / ".fleetfit" / "stamp.json").write_text("{}")
    venvs.make(prefix, keep=".fleetfit", log=prefix / ".fleetfit" / "venv.log")
    assert (prefix / ".fleetfit" / "stamp.json").exists()
    assert not (prefix / "lib" / "python3.9").exists()
    subprocess.run([prefix / "bin" / "python", "-c", "import sys; assert sys.prefix != sys.base_prefix"], check=True)


def old_pythons() -> list[str]:
    """Pythons below 3.10 on this machine, in PATH or where pyenv puts them."""
    in_path = [shutil.which(f"python3.{minor}") for minor in (6, 7, 8, 9)]
    of_pyenv = [str(path) for path in Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python")]
    candidates = [*(path for path in in_path if path), *sorted(of_pyenv)]
    return [path for path in candidates if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]


def test_an_old_python_gets_a_sentence() -> None:
    pythons = old_pythons()
    if not pythons:
        pytest.skip("there is no old Python on this machine")
    for python in pythons:
        command = [python, "estimators/provision"]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert shown.returncode == 1, python
        assert shown.stderr.count("\n") == 1, shown.stderr
        assert "too old" in shown.stderr
        assert "PYTHON=" in shown.stderr
