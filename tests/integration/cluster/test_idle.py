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

import clusters
import pytest
from toolkits import MAIN, printed, tree

from container.system import sockets
from container.system.connection import BlockingConnection
from estimators.backends.docker import kept
from estimators.backends.images.errors import EngineError

pytestmark = pytest.mark.leaves("folders")

SCRIPT = """
import os, sys
print(sorted(name for name in os.environ if name.startswith("OF_JOB")), os.getcwd())
sys.exit(int(os.environ.get("OF_JOB_CODE", 0)))
"""
HOST = "algo-1"
WAITING = "import time\nprint('here', flush=True)\ntime.sleep(100)"


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


def pool_of(place: Path) -> kept.ContainerPool:
    return kept.ContainerPool(place.parents[1])


@pytest.fixture
def pool(place: Path, idle: subprocess.Popen[bytes]) -> Iterator[kept.ContainerPool]:
    """The pool, which a job has."""
    made = pool_of(place)
    clusters.until(lambda: takes(made))
    yield made
    made.close()


def takes(pool: kept.ContainerPool) -> bool:
    with contextlib.suppress(OSError):
        pool.take([HOST])
        return True
    return False


def run(pool: kept.ContainerPool, base: Path, **variables: str) -> tuple[bytes, int | None]:
    """Run a job; what it printed and its exit code."""
    with start(pool, base, **variables) as (stream, answer):
        return read(stream), kept.exit_code(answer)


@contextlib.contextmanager
def start(pool: kept.ContainerPool, base: Path, **variables: str) -> Iterator[tuple[socket.socket, BlockingConnection]]:
    environment = {"SAGEMAKER_BASE_DIR": str(base), "FLEETFIT_LIFELINE_FD": "0", **variables}
    stream, answer = pool.start(HOST, environment)
    with stream, answer:
        stream.settimeout(30)
        yield stream, answer


def await_word(stream: socket.socket) -> None:
    said = b""
    while b"rank 0] here" not in said:
        said += stream.recv(1 << 16)


def read(stream: socket.socket) -> bytes:
    said = b""
    while data := stream.recv(1 << 16):
        said += data
    return said


def test_it_serves_one_job_after_another_however_each_ends(
    tmp_path: Path, idle: subprocess.Popen[bytes], pool: kept.ContainerPool
) -> None:
    first, second = (tree(tmp_path / name, SCRIPT) for name in ("first", "second"))
    said, code = run(pool, first, OF_JOB_1="1")
    assert (printed(said)[0].partition("]")[0], code) == ("['OF_JOB_1'", 0)
    pool.keep(60)
    pool.close()
    other = kept.ContainerPool(pool.path)
    clusters.until(lambda: takes(other))
    said, code = run(other, second, OF_JOB_2="1", OF_JOB_CODE="200")
    assert (printed(said)[0].partition("]")[0], code) == ("['OF_JOB_2', 'OF_JOB_CODE'", 1)
    assert (second / "output" / "failure").exists() and (first / "output" / "success").exists()
    with start(other, tree(tmp_path / "killed", WAITING)) as (stream, answer):
        await_word(stream)
        clusters.below(idle.pid)[0].kill()  # its child, the toolkit
        assert kept.exit_code(answer) == 128 + signal.SIGKILL
    with start(other, tree(tmp_path / "hung up", WAITING)) as (stream, answer):
        await_word(stream)
        stream.close()
        assert kept.exit_code(answer) not in (None, 0)
    clusters.until(lambda: not clusters.below(idle.pid))
    with start(other, tree(tmp_path / "last", WAITING)) as (stream, answer):
        idle.kill()
        assert kept.exit_code(answer) is None
    idle.wait()
    with pytest.raises(EngineError, match="the kept container ended before the job ran in it"):
        other.start(HOST, {})
    other.close()


def test_one_job_at_a_time_has_it(place: Path, tmp_path: Path, pool: kept.ContainerPool) -> None:
    """Whoever only looks, or sends nonsense, or leaves without starting a toolkit, changes nothing."""
    assert pool.in_use and not takes(pool_of(place))
    pool.close()
    for nonsense in (b"", b"\0\0", b"{}\n", b"nothing\n", b"\xff\xff\xff\xff\n", b"[1]"):
        with sockets.connect(pool.socket_path(HOST)) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            assert b"op" in connection.recv(100)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b"", f"{nonsense!r} is taken for a job"
    clusters.until(lambda: takes(pool))
    assert run(pool, tree(tmp_path / "first", SCRIPT))[1] == 0


def test_its_time_is_its_own(idle: subprocess.Popen[bytes], tmp_path: Path, pool: kept.ContainerPool) -> None:
    assert run(pool, tree(tmp_path / "first", SCRIPT))[1] == 0
    pool.keep(0.2)
    pool.close()
    assert idle.wait(30) == 0
    assert not takes(pool) and not pool.in_use


def test_it_ends_with_a_supervisor_that_is_killed(
    idle: subprocess.Popen[bytes], tmp_path: Path, pool: kept.ContainerPool
) -> None:
    with start(pool, tree(tmp_path, WAITING)) as (stream, _):
        await_word(stream)
        pool.close()
    assert idle.wait(30) == 0


def test_sigterm_to_the_first_process_gives_the_script_its_time(
    tmp_path: Path, idle: subprocess.Popen[bytes], pool: kept.ContainerPool
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
    with start(pool, tree(tmp_path, textwrap.dedent(script))) as (stream, answer):
        await_word(stream)
        idle.terminate()
        assert b"saved" in read(stream)
        assert kept.exit_code(answer) == 128 + signal.SIGTERM
    assert idle.wait(30) == 0
    assert not pool.in_use
