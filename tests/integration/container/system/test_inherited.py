"""What one process takes over from another, and what it cannot."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from container.system import inherited

ROOT = Path(inherited.__file__).parents[2]

TAKES = """
import json, os, resource, sys
from container.system import inherited
inherited.take_over(json.loads(sys.argv[1]))
print(json.dumps(inherited.taken_down()))
"""


def test_a_process_takes_over_what_was_taken_down(tmp_path: Path) -> None:
    theirs = inherited.taken_down()
    fewer = [[number, 7 if number == resource.RLIMIT_NOFILE else one, most] for number, one, most in theirs["limits"]]
    wanted = {**theirs, "cwd": str(tmp_path), "umask": 0o027, "oom_score_adj": "321", "limits": fewer}
    run = subprocess.run(
        [sys.executable, "-c", TAKES, json.dumps(wanted)],
        env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(run.stdout) == wanted
    assert inherited.difference(wanted) is None
    assert inherited.taken_down() == theirs and os.getcwd() != str(tmp_path)
