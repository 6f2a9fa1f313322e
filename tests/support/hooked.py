"""Scripts run under the hook, and what they told."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import container

HOOK = Path(container.__file__).parent / "hook"


class Run:
    """A script run under the hook, and the events that it wrote."""

    def __init__(self, argv: list[str], cwd: Path, *, env: dict[str, str] | None = None, path: str = "") -> None:
        read, write = os.pipe()
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HOOK), path))),
            "FLEETFIT_EVENTS": f"{write}:{os.fstat(write).st_ino}",
            **(env or {}),
        }
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(argv, cwd=cwd, env=variables, pass_fds=(write,), stdout=out, stderr=err)
            os.close(write)
            with open(read, "rb") as pipe:
                self.raw = pipe.read()
            self.code = process.wait(60)
            out.seek(0)
            err.seek(0)
            self.out, self.err = out.read(), err.read()
        self.events: list[dict[str, Any]] = [json.loads(line) for line in self.raw.splitlines()]


def hook_module(name: str) -> Any:
    """Load a module of the hook's, under a name by which it does nothing by itself."""
    spec = importlib.util.spec_from_file_location("hook", HOOK / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def script(folder: Path, text: str, name: str = "train.py") -> list[str]:
    (folder / name).write_text(text)
    return [sys.executable, name]
