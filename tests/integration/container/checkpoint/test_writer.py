"""The thread that writes: bounds, back-pressure, errors, endings."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from container.checkpoint import Checkpointer

SCRIPT = """
import sys
import numpy as np
from container.checkpoint import Checkpointer

checkpointer = Checkpointer(sys.argv[1])
checkpointer.save({"a": np.ones(3_000_000)}, step=1)
if sys.argv[2] == "raise":
    raise RuntimeError("the training's own")
if sys.argv[2] == "drop":
    del checkpointer
    Checkpointer(sys.argv[1]).save({"a": np.ones(3)}, step=2, wait=True)
"""


@pytest.mark.parametrize("how", ["end", "raise", "drop"])
def test_what_is_under_way_is_finished(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), how], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (1 if how == "raise" else 0), done.stderr
    restored = Checkpointer(tmp_path).restore()
    assert restored is not None and restored.step == (2 if how == "drop" else 1) and not restored.skipped


def test_a_forked_child_cannot_save(tmp_path: Path) -> None:
    import os

    checkpointer = Checkpointer(tmp_path)
    checkpointer.save({"a": np.zeros(1)}, step=1, wait=True)
    child = os.fork()
    if child == 0:
        try:
            checkpointer.save({"a": np.zeros(1)}, step=2)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be the right one
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    checkpointer.close()
    gc.collect()
