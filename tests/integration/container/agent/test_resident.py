"""``agent host``: the folder of a host, at its beginning and at its end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.contract.frames import FrameDecoder, encode
from container.contract.messages import Message

PACKAGE = Path(__file__).resolve().parents[4] / "container"


class Agent:
    """An agent to which this process is the supervisor."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(PACKAGE), "agent", "host"],
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def hello(self, root: str) -> Message:
        """Greet the agent, and return its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(encode({"op": "hello", "root": root, "silence": 60.0}))
        self.process.stdin.flush()
        decoder = FrameDecoder()
        while True:
            for message, _ in decoder.feed(os.read(self.process.stdout.fileno(), 1 << 16)):
                return message

    def end(self) -> None:
        """Close the connection, and wait for the agent's end."""
        self.process.communicate(timeout=60)


@contextlib.contextmanager
def agent(folder: Path) -> Iterator[Agent]:
    """Start an agent whose ``TMPDIR`` is the folder."""
    one = Agent(folder)
    try:
        yield one
    finally:
        one.end()


def test_an_agent_removes_its_folders_unless_another_uses_them(tmp_path: Path) -> None:
    shared = tmp_path / f"fleetfit-hosts-{os.getuid()}"
    with agent(tmp_path) as first:
        assert first.hello("job-1/hosts/algo-1")["root"] == str(shared / "job-1/hosts/algo-1")
        with agent(tmp_path) as second:
            second.hello("job-2/hosts/algo-1")
        assert os.listdir(shared) == ["job-1"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("owner", ["nobody", "another user"])
def test_an_agent_without_a_folder_says_why(tmp_path: Path, owner: str) -> None:
    folder = tmp_path / "folder"
    if owner == "nobody":
        folder.write_text("")
    else:
        folder.mkdir()
        shared = folder / f"fleetfit-hosts-{os.getuid()}"
        if os.getuid() == 0:
            shared.mkdir()
            os.chown(shared, 1, 1)
        else:
            shared.symlink_to("/")
    # `gettempdir()` passes over a TMPDIR that is not a folder.
    root = str(folder / "hosts") if owner == "nobody" else "job-1/hosts/algo-1"
    with agent(folder) as one:
        answer = one.hello(root)
    assert "Not a directory" in answer["error"] if owner == "nobody" else "belongs to another user" in answer["error"]
