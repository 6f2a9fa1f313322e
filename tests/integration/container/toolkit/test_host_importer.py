"""The end of a host's importer, by a program that stands for one: it tells that it hosts, hangs up, and stays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from container.contract import variables
from container.system import processes
from container.system.loop import Loop
from container.toolkit.importer.importer import Importer
from container.toolkit.importer.imports import Imports
from container.toolkit.process_group import GangFollower

_HANGS_UP = """
import json, os, signal, socket
listener = socket.socket(fileno=int(os.environ["FLEETFIT_IMPORTER"].partition(":")[0]))
toolkit, _ = listener.accept()
toolkit.sendall(json.dumps({"op": "forked", "pid": os.getpid()}).encode() + b"\\n")
toolkit.close()
signal.pause()
"""


def test_one_that_has_hung_up_and_does_not_end_is_killed_and_nobody_else(
    loop: Loop, run_until: Callable[..., None], tmp_path: Path
) -> None:
    env = {"PATH": os.environ["PATH"], variables.CODE_DIR: str(tmp_path), "PYTHONPATH": ""}
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{_HANGS_UP}")
    python.chmod(0o755)
    bystander = processes.spawn([sys.executable, "-c", "import signal; signal.pause()"], env=env)
    importer = Importer(loop, tmp_path, tmp_path / "socket", str(python), env, Imports(), GangFollower())
    pid = importer.pid
    run_until(lambda: importer.imported and importer.pid is None)
    assert importer.end(orderly=True) == []
    assert importer.end(orderly=True) == [], "it is over"
    ended, status = os.waitpid(pid or 0, 0)
    assert (ended, processes.decode_status(status)) == (pid, (None, 9))
    assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    os.kill(bystander, 9)
    os.waitpid(bystander, 0)
