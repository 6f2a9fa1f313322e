"""What a toolkit does with its importer, by programs that stand for one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from container.contract import variables
from container.contract.messages import Message
from container.system import processes
from container.system.loop import Loop
from container.toolkit.importer.importer import Importer
from container.toolkit.importer.imports import Imports
from container.toolkit.process_group import GangFollower

#: Says that it has forked itself, hangs up, and stays.
_HANGS_UP = """
import json, os, signal, socket
listener = socket.socket(fileno=int(os.environ["FLEETFIT_IMPORTER"].partition(":")[0]))
toolkit, _ = listener.accept()
toolkit.sendall(json.dumps({"op": "forked", "pid": os.getpid()}).encode() + b"\\n")
toolkit.close()
signal.pause()
"""

#: Serves one toolkit, and refuses the next.
_REFUSES = """
import json, os, signal, socket
listener, place = os.environ["FLEETFIT_IMPORTER"].split(":")
listener = socket.socket(fileno=int(listener))
toolkit, _ = listener.accept()
toolkit.sendall(json.dumps({"op": "forked", "pid": os.getpid()}).encode() + b"\\n")
another, _ = listener.accept()
another.recv(1)
os.unlink(place)
another.close()
signal.pause()
"""


@pytest.fixture
def start(loop: Loop, tmp_path: Path) -> Callable[..., Importer]:
    """Start what stands for an importer, or connect to it."""

    def started(program: str, follower: GangFollower | None = None, path: str = "socket") -> Importer:
        env = {"PATH": os.environ["PATH"], variables.CODE_DIR: str(tmp_path), "PYTHONPATH": ""}
        python = tmp_path / "python"
        if not python.exists():  # several toolkits have the same
            python.write_text(f"#!{sys.executable}\n{program}")
            python.chmod(0o755)
        return Importer(loop, tmp_path, tmp_path / path, str(python), env, Imports(), follower or GangFollower())

    return started


def test_one_that_refuses_a_toolkit_is_replaced_and_serves_the_others(
    start: Callable[..., Importer], run_until: Callable[..., None]
) -> None:
    first = start(_REFUSES)
    run_until(lambda: first.imported)
    second = start(_REFUSES, path="another")
    run_until(lambda: second.imported)
    assert first.pid is not None and second.pid not in (None, first.pid) and second.root == second.pid
    for one in (first, second):
        os.kill(one.root or 0, signal.SIGKILL)
        assert one.end(orderly=False) == []
        os.waitpid(one.root or 0, 0)


class _Told(GangFollower):
    """Notes what the importer tells."""

    def __init__(self) -> None:
        self.told: list[Message] = []

    def on_importer(self, message: Message) -> None:
        self.told.append(message)


def test_one_that_ends_before_it_has_imported_is_told_and_not_started_again(
    start: Callable[..., Importer], run_until: Callable[..., None], tmp_path: Path
) -> None:
    follower = _Told()
    importer = start("", follower)
    run_until(lambda: follower.told)
    assert follower.told == [{"unfit": "the importer ended before it had imported"}]
    assert importer.pid is None and importer.spared == () and importer.end(orderly=True) == []
    os.waitpid(importer.root or 0, 0)


def test_one_that_cannot_be_started_is_told(start: Callable[..., Importer], tmp_path: Path) -> None:
    (tmp_path / "python").touch()
    follower = _Told()
    importer = start("", follower)
    assert follower.told == [{"unfit": f"{tmp_path / 'python'} could not be started: Permission denied"}]
    assert importer.pid is None and importer.end(orderly=True) == []


def test_one_that_has_hung_up_and_does_not_end_is_killed_and_nobody_else(
    start: Callable[..., Importer], run_until: Callable[..., None]
) -> None:
    bystander = processes.spawn([sys.executable, "-c", "import signal; signal.pause()"], env=os.environ)
    importer = start(_HANGS_UP)
    pid = importer.pid
    run_until(lambda: importer.imported and importer.pid is None)
    assert importer.end(orderly=True) == []
    assert importer.end(orderly=True) == [], "it is over"
    ended, status = os.waitpid(pid or 0, 0)
    assert (ended, processes.decode_status(status)) == (pid, (None, 9))
    assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    os.kill(bystander, 9)
    os.waitpid(bystander, 0)
