"""What one process takes over from another, and what it cannot."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from container.system import inherited

ROOT = Path(inherited.__file__).parents[2]

TAKES = """
import json, os, resource, sys
from container.system import inherited
inherited.take_over(int(sys.argv[1]))
mask = os.umask(0)
score = open("/proc/self/oom_score_adj").read().strip()
print(json.dumps([os.getcwd(), mask, score, resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


def _waiting(act: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that does something and waits."""
    script = f"import os, resource, sys\n{act}\nprint(flush=True)\nsys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_process_takes_over_what_another_has(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    act = f"""os.umask(0o027)
open("/proc/self/oom_score_adj", "w").write("321")
resource.setrlimit(resource.RLIMIT_NOFILE, (77, {most}))"""
    with _waiting(act, tmp_path) as theirs:
        assert inherited.difference(theirs.pid) is None
        command = [sys.executable, "-c", TAKES, str(theirs.pid)]
        run = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
        theirs.kill()
    assert json.loads(run.stdout) == [str(tmp_path), 0o027, "321", [77, most]]


@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("os.nice(1)", "its priorities differ"),
        ("resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", "its hard limits differ"),
    ],
)
def test_what_cannot_be_taken_over_is_said(act: str, why: str, tmp_path: Path) -> None:
    with _waiting(act, tmp_path) as theirs:
        assert inherited.difference(theirs.pid) == why
        theirs.kill()


def test_a_process_that_has_ended_has_nothing_to_take_over(tmp_path: Path) -> None:
    with _waiting("", tmp_path) as theirs:
        theirs.kill()
    with pytest.raises(OSError):
        inherited.difference(theirs.pid)
    assert os.getcwd() != str(tmp_path)
