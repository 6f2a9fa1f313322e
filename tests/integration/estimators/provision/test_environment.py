"""The real environment: what is there is not made again, and what cannot be made is left out."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


def provision(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as make does, in the checkout."""
    return subprocess.run(
        [sys.executable, "-m", "estimators.provision", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def real_stamp() -> dict[str, object]:
    stamp = Path(sys.prefix) / ".fleetfit" / "stamp.json"
    if not stamp.is_file():
        pytest.skip("this Python's environment was not made by estimators.provision")
    document: dict[str, object] = json.loads(stamp.read_text())
    return document


def test_a_second_run_does_nothing_and_is_fast() -> None:
    before = real_stamp()
    times_s = []
    for _ in range(5):
        # Of the processor: other tests run meanwhile.
        started = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = provision("--venv", sys.prefix, "--no-horovod")
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime)
        assert shown.returncode == 0, shown.stderr
        assert "is up to date" in shown.stdout
    assert 0 < min(times_s) < 0.5
    assert real_stamp() == before


def test_without_a_compiler_the_rest_is_made_and_one_line_says_so(tmp_path: Path) -> None:
    """Everything is there but Horovod, as on a machine without g++ and with an empty cache."""
    stamp = real_stamp()
    skeleton = tmp_path / "venv"
    here = Path(sys.prefix)
    (skeleton / "bin").mkdir(parents=True)
    (skeleton / "bin" / "python").symlink_to(here / "bin" / "python")
    (skeleton / "pyvenv.cfg").touch()
    packages = next(here.glob("lib/python3.*/site-packages"))
    target = skeleton / packages.relative_to(here)
    target.mkdir(parents=True)
    for folder in packages.glob("*.dist-info"):
        if not folder.name.startswith("horovod-"):
            (target / folder.name).symlink_to(folder)
    steps = stamp["steps"]
    assert isinstance(steps, dict)
    steps.pop("horovod", None)
    steps["venv"]["key"] = f"{skeleton}|{os.path.realpath(skeleton / 'bin' / 'python')}"
    (skeleton / ".fleetfit").mkdir()
    (skeleton / ".fleetfit" / "stamp.json").write_text(json.dumps(stamp))
    (tmp_path / "empty").mkdir()
    without = {"PATH": str(tmp_path / "empty"), "FLEETFIT_CACHE": str(tmp_path / "cache"), "CXX": ""}

    shown = provision("--venv", str(skeleton), **without)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.count("\n") == 1
    assert "no C++ compiler (g++)" in shown.stderr
    assert "apt-get install g++" in shown.stderr

    required = provision("--venv", str(skeleton), "--require-horovod", **without)
    assert required.returncode == 1
    assert "no C++ compiler" in required.stderr
