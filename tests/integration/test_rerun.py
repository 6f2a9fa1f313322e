"""What CI runs the tests with: what is broken is red, whatever else happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"

CONFTEST = """
import pytest, turns
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return turns.Scheduler(config, log)
"""
FLAKY = """
import os
def test_flaky():
    if not os.path.exists("seen"):
        open("seen", "w").close()
        assert 0
"""
GOOD = "def test_good(): pass\n"
BROKEN = "def test_broken(): assert 0\n"
DEADLY = "import os\ndef test_deadly():\n    if 'PYTEST_XDIST_WORKER' in os.environ: os._exit(3)\n"
SKIPPED_THEN = """
import os, pytest
def test_gone():
    if os.path.exists("failed"):
        pytest.skip("the engine is gone")
    open("failed", "w").close()
    assert 0
"""


def run(folder: Path, files: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run tests that are in a folder; the exit code, and what was printed."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "rerun.py"), "-q", *arguments],
        cwd=folder,
        # Of pytest's plugins only the one that is asked for: each of some fifty processes would import all of them.
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SUPPORT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


WAYS = pytest.mark.parametrize(
    "way", [("-p", "no:xdist"), ("-p", "xdist", "-n", "2")], ids=["one process", "two processes"]
)


@pytest.mark.landing
@WAYS
def test_one_that_fails_once_is_green_and_named(way: tuple[str, ...], tmp_path: Path) -> None:
    code, said = run(tmp_path, {"flaky": FLAKY, "good": GOOD}, *way)
    assert (code, "FLAKY test_flaky.py::test_flaky" in said) == (0, True), said


@WAYS
def test_it_is_red_where_another_one_fails_twice_or_is_skipped_at_the_second_time(
    way: tuple[str, ...], tmp_path: Path
) -> None:
    code, said = run(tmp_path, {"flaky": FLAKY, "broken": BROKEN, "gone": SKIPPED_THEN}, *way)
    assert code == 1, said
    assert "FLAKY test_flaky.py::test_flaky" in said
    assert "FAILED TWICE test_broken.py::test_broken" in said
    assert "FAILED TWICE test_gone.py::test_gone" in said


@WAYS
def test_it_is_red_where_a_file_cannot_be_read(way: tuple[str, ...], tmp_path: Path) -> None:
    code, said = run(tmp_path, {"flaky": FLAKY, "unread": "("}, *way)
    assert code == (2 if "no:xdist" in way else 1), said


@WAYS
def test_it_is_red_where_tests_were_left_out(way: tuple[str, ...], tmp_path: Path) -> None:
    code, said = run(tmp_path, {"a": FLAKY, "b": GOOD, "c": BROKEN}, "-x", *way)
    assert code == (1 if "no:xdist" in way else 2), said


def test_what_stands_behind_a_deadly_test_is_run(tmp_path: Path) -> None:
    """And the deadly one once more, where it kills nobody else."""
    code, said = run(tmp_path, {"all": DEADLY + BROKEN + GOOD}, "-p", "xdist", "-n", "2")
    assert "FAILED TWICE test_all.py::test_broken" in said, said
    assert "FLAKY test_all.py::test_deadly" in said
    assert "2 failed, 1 passed" in said
    assert code == 1
