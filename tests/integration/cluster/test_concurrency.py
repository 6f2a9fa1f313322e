"""Several jobs at once, deadlines, strangers at the door, and odd places."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import clusters
import pytest

from container.contract import messages
from estimators import TrainingJobError

ALLREDUCE = """
import os
import aid
from mpi4py import MPI
world = MPI.COMM_WORLD
total = 0
for _ in range(50):
    total += world.allreduce(world.rank + 1)
aid.report(total=total, size=world.size, job=os.environ["TRAINING_JOB_NAME"])
"""


def test_jobs_at_once_of_the_same_script_do_not_clash(make: clusters.Make) -> None:
    """Two are started one after the other; three estimators run theirs in threads of this process meanwhile."""
    detached = make(ALLREDUCE, hosts=2, processes=2)
    estimators = [make(ALLREDUCE, hosts=1, processes=2) for _ in range(3)]
    errors: list[Exception] = []

    def work(estimator: object) -> None:
        try:
            clusters.fit(estimator, logs=False)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    jobs = [clusters.fit(detached, wait=False, job_name=f"job-{number}") for number in range(2)]
    threads = [threading.Thread(target=work, args=(estimator,)) for estimator in estimators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    jobs += [estimator.latest_training_job for estimator in estimators]
    assert len({job.name for job in jobs}) == 5
    for job, size in zip(jobs, (4, 4, 2, 2, 2), strict=True):
        job.wait(logs=False)
        assert job.status == "Completed"
        ranks = clusters.reports(job)
        assert sorted(ranks) == list(range(size))
        assert {(said["total"], said["job"]) for said in ranks.values()} == {(50 * size * (size + 1) // 2, job.name)}


# --- deadlines ---


@pytest.mark.parametrize("late", ["a toolkit", "mpirun"])
def test_what_does_not_start_in_time_is_named(late: str, make: clusters.Make, tmp_path: Path) -> None:
    """A host's toolkit is stopped before it can say a word, or mpirun hangs."""
    if late == "mpirun":
        python = clusters.small_venv(tmp_path / "venv")
        fake = python.parent / "mpirun"
        fake.write_text('#!/bin/sh\ntest "$1" = --version || exec sleep 300\n')  # provenance asks for its version
    else:
        python = fake = tmp_path / "python"
        fake.write_text(
            "#!/bin/sh\ncase $SAGEMAKER_BASE_DIR in */algo-2/*) kill -STOP $$ ;; esac\n"
            f'exec {shlex.quote(sys.executable)} "$@"\n'
        )
        (tmp_path / "mpirun").symlink_to(Path(sys.executable).with_name("mpirun"))
    fake.chmod(0o755)
    options = {"start_timeout": 3.0, "python": str(python)}
    job = clusters.fit(make("print('never')", hosts=3, processes=1, options=options), wait=False, job_name="job-1")
    with pytest.raises(TrainingJobError) as caught:
        job.wait(logs=False)
    assert "never" not in clusters.printed(job)
    assert caught.value.failure.cause.value == "timeout"
    assert late == "mpirun" or caught.value.host == "algo-2"
    said = "did not start within 3 s" if late == "mpirun" else "algo-2 did not answer within 3 s"
    assert said in str(caught.value)
    clusters.until(lambda: clusters.marked("job-1") == [])


# --- strangers ---


def control_port(job_name: str) -> int:
    """The port on which algo-1's toolkit listens."""
    toolkit = next(one for one in clusters.marked(job_name) if one.kind == "toolkit" and one.host == "algo-1")
    inodes = set()
    for entry in os.scandir(f"/proc/{toolkit.pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].partition(":")[2], 16)
    raise AssertionError("algo-1 does not listen")


def frame(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def test_strangers_do_not_disturb_a_job(make: clusters.Make) -> None:
    """Neither while its hosts gather, nor on the hosts' door or the record's socket while it trains."""
    job = clusters.fit(
        make(
            """
            import aid
            from mpi4py import MPI
            MPI.COMM_WORLD.Barrier()
            aid.mark(f"ready-{aid.RANK}")
            aid.wait_for("go")
            print("undisturbed", MPI.COMM_WORLD.allreduce(1))
            """,
            hosts=3,
            processes=1,
        ),
        wait=False,
    )
    open_ones: list[socket.socket] = []

    def take_places() -> bool:
        with contextlib.suppress(StopIteration, AssertionError, OSError):
            port = control_port(job.name)
            for number in range(40):
                connection = socket.create_connection(("127.0.0.1", port), timeout=5)
                open_ones.append(connection)
                connection.sendall(frame({"op": "hello", "host": f"algo-{number % 4}", "token": "wrong"}))
        return bool(open_ones)

    clusters.until(take_places)
    make.await_ready(3, job)
    port = control_port(job.name)
    choice = random.Random(1)
    greetings = [
        frame({"op": "hello", "host": "algo-2", "token": "0" * 64}),
        frame({"op": "hello", "host": "algo-2", "token": None}),
        frame({"op": "hello", "host": "algo-2"}),
        frame({"op": "hello", "host": "algo-2", "token": ["x"]}),
        frame({"op": "hello", "host": ["algo-2"], "token": "x"}),
        frame({"op": "hello", "host": {"a": 1}}),
        frame({"op": "failed", "failure": {"cause": "internal", "message": "forged"}}),
        frame({"op": "stop"}),
        frame(["op", "hello"]),
        frame({"no": "op"}),
        b"GET / HTTP/1.1\r\nHost: algo-1\r\n\r\n",
        b"x" * (messages.LIMIT + 1),
        b"\xff\xfe\xfd\n",
        b"[" * 1_000_000 + b"\n",  # nested too deep for a parser
    ]
    closed = len(greetings)
    greetings += [
        b'{"op": "hello", ',
        b"",
        *(choice.randbytes(choice.randint(1, 5000)) for _ in range(50)),
    ]
    for number, greeting in enumerate(greetings):
        connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        with contextlib.suppress(OSError):
            connection.sendall(greeting)
        if number < closed:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b"", f"the door is not shut on {greeting[:80]!r}"
        open_ones.append(connection)
    for connection in open_ones[::2]:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        connection.close()
    folder = os.open(job.record.path, os.O_RDONLY)
    try:
        for data in (
            b"\n", b"not json\n", b"[1]\n", b'{"op": "dance"}\n', b'{"op": "stop", "grace": "x"}\n',
            b'{"op": "stop", "grace": true}\n', b'{"op": ["stop"]}\n', b"x" * 200_000, b"\xff\n", b'{"op"',
            b"[" * 60_000 + b"\n",
        ):  # fmt: skip
            with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                client.connect(f"/proc/self/fd/{folder}/control.sock")
                client.sendall(data)
                client.settimeout(0.05)
                client.recv(1000)
    finally:
        os.close(folder)
    assert job.status == "InProgress"
    make.mark("go")
    job.wait(logs=False)
    for connection in open_ones[1::2]:
        connection.close()
    assert [clusters.printed(job, rank) for rank in range(3)] == [["undisturbed 3"]] * 3


# --- places ---


def test_a_running_job_keeps_to_itself(make: clusters.Make) -> None:
    """Its files and its token are its user's alone; it inherits no descriptor, and imports nothing that takes long."""
    read, write = os.pipe()
    inherited = [os.dup(write) for _ in range(20)]
    for fd in (write, *inherited):
        os.set_inheritable(fd, True)
    old = os.umask(0)
    try:
        job = make.start(
            """
            import os
            fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                   if os.path.lexists(f"/proc/self/fd/{fd}")]
            import aid
            from mpi4py import MPI
            aid.report(fds=fds)
            aid.mark(f"ready-{aid.RANK}")
            aid.wait_for("go")
            """,
            hosts=2,
            processes=1,
            ready=2,
        )
        clusters.until(lambda: len(clusters.reports(job)) == 2)
    finally:
        os.umask(old)
        for fd in (read, write, *inherited):
            os.close(fd)
    snapshot = clusters.Snapshot(job)
    assert any(path.is_dir() for path in snapshot.files)
    files = [job.record.path / name for name in ("status.json", "request.json", "options.json", "events.jsonl")]
    files += [
        job.record.supervisor_log,
        *(path for host in job.hosts for path in job.record.log_dir(host, 0).iterdir()),
    ]
    for path in (job.record.path, job.record.path.parent, *(path for path in snapshot.files if path.is_dir())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for one in (snapshot.supervisor, snapshot.find("toolkit"), snapshot.find("wrapper")):
        maps = Path(f"/proc/{one.pid}/maps").read_text()
        for heavy in ("tensorflow", "numpy", "pandas", "mpi4py"):
            assert heavy not in maps, f"the {one.kind} has imported {heavy}"
    tokens = {one.environ["FLEETFIT_JOB_TOKEN"] for one in snapshot.members if "FLEETFIT_JOB_TOKEN" in one.environ}
    assert len(tokens) == 1
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert tokens.pop() not in listing, "ps shows the job's token"
    for said in clusters.reports(job).values():
        assert len(said["fds"]) <= 6, said["fds"]  # 0, 1, 2, the events, the listing itself
        assert not [target for target in said["fds"] if target.startswith("socket")], said["fds"]
    make.mark("go")
    job.wait(logs=False)


@pytest.mark.parametrize("kind", ["longest", "longer", "long", "spaces"])
def test_odd_homes_and_temporary_folders(
    kind: str, make: clusters.Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A socket's path has 107 characters, and mpirun splits its parameters at spaces."""
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(short))
    limit = 107 - len("/fleetfit-12345678/algo-10000/host.sock")
    length = {"longest": limit, "longer": limit + 1, "long": 250}.get(kind)
    folder = short / ("t" * (length - len(str(short)) - 1) if length else "odd 'tmp' $x;")
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    home = tmp_path / ("h" * 150 if kind == "long" else "home with 'odd' \"spaces\"; $x ü")
    if kind in ("long", "spaces"):
        monkeypatch.setenv("FLEETFIT_HOME", str(home))
    job = make.run(
        """
        import os, tempfile
        import aid
        from mpi4py import MPI
        aid.report(total=MPI.COMM_WORLD.allreduce(1), tmp=os.environ["TMPDIR"])
        """,
        hosts=2,
        processes=2,
    )
    assert [(said["total"], said["tmp"]) for said in clusters.reports(job).values()] == [(4, str(folder))] * 4
    assert list(folder.iterdir()) == []
    assert job.record.path.is_relative_to(home) == (kind in ("long", "spaces"))


@pytest.mark.parametrize("started", ["by mpirun", "without standard streams and from a folder that is gone"])
def test_a_job_does_not_depend_on_how_its_caller_was_started(started: str, make: clusters.Make, tmp_path: Path) -> None:
    """As from a script of MPI, or from a daemon: descriptors 0, 1 and 2 are free for sockets and pipes."""
    python: tuple[str, ...] = ("/bin/sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable)
    program = 'import os; os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")\n'
    if started == "by mpirun":
        python = (
            str(Path(sys.executable).parent / "mpirun"),
            "--allow-run-as-root", "--oversubscribe", "-np", "1", "--mca", "orte_tmpdir_base", str(tmp_path),
            sys.executable,
        )  # fmt: skip
        program = ""
    estimator = make(ALLREDUCE, hosts=2, processes=1)
    caller = clusters.Caller(
        f'{program}estimator.fit(job_name="job-1", logs=False)', estimator, tmp_path, python=python
    )
    job = caller.job("job-1")
    assert caller.wait() == 0, caller.errors.read_text()
    assert [said["total"] for said in clusters.reports(job).values()] == [150, 150]
