"""The first process of a kept container, without the container: it forks the toolkit for one job after another."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest
from toolkits import MAIN, printed, tree

from container.contract.messages import encode
from container.system import sockets
from container.system.connection import BlockingConnection
from estimators.backends.docker import kept
from estimators.backends.docker.engine import Engine

pytestmark = pytest.mark.leaves("folders")

SCRIPT = """
import os, sys
print(sorted(name for name in os.environ if name.startswith("OF_JOB")), os.getcwd())
sys.exit(int(os.environ.get("OF_JOB_CODE", 0)))
"""
WAITING = "import time\nprint('here', flush=True)\ntime.sleep(100)"


class Running(Engine):
    """An engine of which each container runs."""

    def __init__(self) -> None: ...

    def inspect(self, container: str) -> dict[str, Any]:
        return {"State": {"Running": True}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder whose path is too long for a socket's address."""
    place = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 5, "sockets", "algo-1")
    place.mkdir(parents=True)
    return place


@pytest.fixture
def idle(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    # In a container the path is short.
    process = subprocess.Popen([sys.executable, "-I", "-S", str(MAIN), "idle", f"./{kept.SOCKET}"], cwd=place)
    yield process
    process.kill()
    process.wait()


def run(place: Path, base: Path, **variables: str) -> tuple[bytes, int | None]:
    """Run a job; what it printed and its exit code."""
    with start(place, base, **variables) as (stream, control):
        return read(stream), kept.exit_code(control)


@contextlib.contextmanager
def start(place: Path, base: Path, **variables: str) -> Iterator[tuple[socket.socket, BlockingConnection]]:
    environment = {"SAGEMAKER_BASE_DIR": str(base), "FLEETFIT_LIFELINE_FD": "0", **variables}
    stream, control = kept.start(kept.ContainerPool(place.parents[1]), place.name, environment, Running())
    with stream, control:
        stream.settimeout(30)
        yield stream, control


def await_word(stream: socket.socket) -> None:
    said = b""
    while b"rank 0] here" not in said:
        said += stream.recv(1 << 16)


def read(stream: socket.socket) -> bytes:
    said = b""
    while data := stream.recv(1 << 16):
        said += data
    return said


def listens(place: Path) -> bool:
    with contextlib.suppress(OSError):
        sockets.connect(place / kept.SOCKET).close()
        return True
    return False


def test_it_serves_one_job_after_another_however_each_ends(
    tmp_path: Path, place: Path, idle: subprocess.Popen[bytes]
) -> None:
    clusters.until(lambda: listens(place))
    run_nothing = encode({"op": "run", "environment": {}})  # with no descriptor
    for nonsense in (b"", b"\0\0", b"{}\n", b"nothing\n", b"\xff\xff\xff\xff\n", run_nothing, run_nothing[:-1]):
        with sockets.connect(place / kept.SOCKET) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b"", f"{nonsense!r} is taken for a job"
    first, second = (tree(tmp_path / name, SCRIPT) for name in ("first", "second"))
    said, code = run(place, first, OF_JOB_1="1")
    assert (printed(said)[0].partition("]")[0], code) == ("['OF_JOB_1'", 0)
    said, code = run(place, second, OF_JOB_2="1", OF_JOB_CODE="200")
    assert (printed(said)[0].partition("]")[0], code) == ("['OF_JOB_2', 'OF_JOB_CODE'", 1)
    assert (second / "output" / "failure").exists() and (first / "output" / "success").exists()
    with start(place, tree(tmp_path / "killed", WAITING)) as (stream, control):
        await_word(stream)
        clusters.below(idle.pid)[0].kill()  # its child, the toolkit
        assert kept.exit_code(control) == 128 + signal.SIGKILL
    with start(place, tree(tmp_path / "hung up", WAITING)) as (stream, control):
        await_word(stream)
        stream.close()  # as when the supervisor was killed
        assert kept.exit_code(control) not in (None, 0)
    clusters.until(lambda: not clusters.below(idle.pid))
    with start(place, tree(tmp_path / "last", WAITING)) as (stream, control):
        idle.kill()
        assert kept.exit_code(control) is None


def test_sigterm_to_the_first_process_gives_the_script_its_time(
    tmp_path: Path, place: Path, idle: subprocess.Popen[bytes]
) -> None:
    """As ``docker stop`` does it."""
    script = """
    import signal, sys, time
    def save(number, frame):
        print("saved")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("here", flush=True)
    time.sleep(100)
    """
    with start(place, tree(tmp_path, textwrap.dedent(script))) as (stream, control):
        await_word(stream)
        idle.terminate()
        assert b"saved" in read(stream)
        assert kept.exit_code(control) == 128 + signal.SIGTERM
    assert idle.wait(30) == 0
    assert not listens(place)
