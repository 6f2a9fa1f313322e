"""A shell script may start any Python: the hook keeps to what Python 3.6 knows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import container

HOOK = Path(container.__file__ or "").parent / "hook" / "sitecustomize.py"
#: Loads the hook as a module of another name, so that it does nothing, and writes what it reports with.
WRITE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("hook", sys.argv[1])
hook = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hook)
print(hook._json({"texts": ("a", "\\u00e9\\n"), "numbers": [1, 2.5], "others": [None, True]}))
"""


def pythons() -> list[str]:
    """This Python, and older ones of this machine."""
    in_path = [shutil.which(f"python3.{minor}") for minor in range(6, 11)]
    of_pyenv = sorted(str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python"))
    found = [sys.executable, *(path for path in in_path if path), *of_pyenv]
    return [path for path in found if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]


def test_what_is_reported_is_json_in_every_python() -> None:
    for python in pythons():
        written = subprocess.run([python, "-c", WRITE, HOOK], capture_output=True, text=True)
        assert written.returncode == 0, (python, written.stderr)
        assert json.loads(written.stdout) == {"texts": ["a", "é\n"], "numbers": [1, 2.5], "others": [None, True]}
