"""A program that is forked from a process which has imported TensorFlow ends as one of its own does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked
import launching
import pytest
from waiting import until

pytestmark = pytest.mark.tensorflow

#: As those of other tests, so that there is one import for all.
ENVIRONMENT = launching.environment(TF_USE_LEGACY_KERAS="1")
STAYS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def start(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        forked.command(["-c", text], ENVIRONMENT), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )


def test_its_exit_code_and_its_signal_come_back() -> None:
    with start("import sys, tensorflow as tf; print(tf.keras.Model.__module__); sys.exit(7)") as program:
        said, _ = program.communicate(timeout=100)
    assert said.startswith("tf_keras") and program.returncode == 7
    with start(STAYS) as program:
        assert program.stdout is not None and program.stdout.readline()
        program.terminate()
        assert program.wait(60) == -15


def test_it_ends_with_the_process_that_stands_for_it() -> None:
    with start(STAYS) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        assert "forked.py" in Path(f"/proc/{pid}/cmdline").read_text()
        program.kill()
    until(lambda: not Path(f"/proc/{pid}").exists())
