"""Tracebacks found in printed output: those that real interpreters print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from container.toolkit.traceback_text import last_traceback


def printed(tmp_path: Path, text: str) -> str:
    (tmp_path / "train.py").write_text(text)
    return subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True).stderr


SCRIPTS = {
    "plain": "1/0",
    "multi-line message": "raise ValueError('one\\n  two\\n\\nthree')",
    "chained": "try:\n    1/0\nexcept Exception:\n    {}['x']",
    "cause": "try:\n    1/0\nexcept Exception as e:\n    raise RuntimeError('bad') from e",
    "three": "try:\n    try:\n        1/0\n    except Exception:\n        {}['x']\nexcept Exception as e:\n"
    "    raise RuntimeError('bad') from e",
    "syntax": "def f(:\n",
    "indentation": "def f():\n1\n",
    "imported syntax": "exec('def f(:')",
    "recursion": "def f(): f()\nf()",
    "no message": "raise KeyboardInterrupt",
    "fatal": "import faulthandler, os\nfaulthandler.enable()\nos.abort()",
    "group": "def f(): raise TypeError('b')\ntry:\n    f()\nexcept TypeError as e:\n"
    "    raise ExceptionGroup('eg', [ValueError('a'), e])",
}
if sys.version_info < (3, 11):
    del SCRIPTS["group"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_whole_of_it_is_found(tmp_path: Path, name: str) -> None:
    error = printed(tmp_path, SCRIPTS[name])
    assert error
    assert last_traceback(error) == error.rstrip()
    assert last_traceback(b"epoch 1\nloss 0.5\r\nbar 10%\rbar 20%\r\n" + error.encode()) == error.rstrip()
    assert last_traceback(error.replace("\n", "\r\n")) == error.rstrip()
