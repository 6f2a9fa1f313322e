"""Several jobs at once, names, deadlines, and strangers at the door."""

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
import time
from pathlib import Path

import clusters
import pytest

from container.contract import messages
from estimators import JobExistsError, TrainingJobError

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


@pytest.mark.parametrize("count", [2, 4])
def test_jobs_at_once_of_the_same_script_do_not_clash(count: int, make: clusters.Make) -> None:
    estimator = make(ALLREDUCE, hosts=2, processes=2)
    jobs = [clusters.fit(estimator, wait=False, job_name=f"job-{number}") for number in range(count)]
    for job in jobs:
        job.wait(logs=False)
        assert job.status == "Completed"
        ranks = clusters.reports(job)
        assert sorted(ranks) == [0, 1, 2, 3]
        assert all(said["total"] == 500 and said["job"] == job.name for said in ranks.values())


def test_estimators_in_threads_of_one_process(make: clusters.Make) -> None:
    estimators = [make(ALLREDUCE, hosts=1, processes=2) for _ in range(3)]
    errors: list[Exception] = []

    def work(estimator: object) -> None:
        try:
            clusters.fit(estimator, logs=False)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(estimator,)) for estimator in estimators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    jobs = [estimator.latest_training_job for estimator in estimators]
    assert len({job.name for job in jobs if job is not None}) == 3
    assert all(job is not None and job.status == "Completed" for job in jobs)


def test_a_name_is_used_once(make: clusters.Make) -> None:
    estimator = make("import time\ntime.sleep(300)")
    job = clusters.fit(estimator, wait=False, job_name="mine")
    with pytest.raises(JobExistsError, match="mine"):
        clusters.fit(estimator, wait=False, job_name="mine")
    job.stop(wait=True, grace=0)
    with pytest.raises(JobExistsError, match="mine"):
        clusters.fit(estimator, wait=False, job_name="mine")
    assert job.status == "Stopped"


def test_a_name_that_two_processes_want_goes_to_one(make: clusters.Make, tmp_path: Path) -> None:
    estimator = make("print('ran')")
    callers = [
        clusters.Caller('estimator.fit(job_name="mine")', estimator, tmp_path / str(number)) for number in range(3)
    ]
    codes = sorted(caller.wait() for caller in callers)
    assert codes == [0, 1, 1], [caller.errors.read_text() for caller in callers]
    assert sum("JobExistsError" in caller.errors.read_text() for caller in callers) == 2


# --- deadlines ---


def test_a_host_that_never_comes_up_is_named(make: clusters.Make, tmp_path: Path) -> None:
    """Its toolkit is stopped before it can say a word."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\ncase $SAGEMAKER_BASE_DIR in */algo-2/*) kill -STOP $$ ;; esac\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    (tmp_path / "mpirun").symlink_to(Path(sys.executable).with_name("mpirun"))
    options = {"start_timeout": 3.0, "python": str(python)}
    job = clusters.fit(make("print('never')", hosts=3, processes=1, options=options), wait=False, job_name="job-1")
    with pytest.raises(TrainingJobError) as caught:
        job.wait(logs=False)
    assert "never" not in clusters.printed(job)
    assert caught.value.failure.cause.value == "timeout"
    assert caught.value.host == "algo-2"
    assert "algo-2 did not answer within 3 s" in str(caught.value)
    clusters.until(lambda: clusters.marked("job-1") == [])


def test_ranks_that_mpirun_never_starts_are_named(make: clusters.Make, tmp_path: Path) -> None:
    """mpirun hangs: the ranks that did not come are named, with the remedy."""
    python = clusters.small_venv(tmp_path / "venv")
    fake = python.parent / "mpirun"
    fake.write_text('#!/bin/sh\ntest "$1" = --version || exec sleep 300\n')  # provenance asks for its version
    fake.chmod(0o755)
    with pytest.raises(TrainingJobError) as caught:
        make.run("", hosts=2, processes=1, options={"start_timeout": 1.0, "python": str(python)})
    assert "did not start within 1 s" in str(caught.value)
    assert caught.value.failure.cause.value == "timeout"


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
    job = make.start(
        """
        import aid
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()
        aid.mark(f"ready-{aid.RANK}")
        aid.wait_for("go")
        print("undisturbed", MPI.COMM_WORLD.allreduce(1))
        """,
        hosts=2,
        processes=2,
        ready=4,
    )
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
    open_ones = []
    for number, greeting in enumerate(greetings):
        connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        with contextlib.suppress(OSError):
            connection.sendall(greeting)
        if number < closed:  # the door is shut on it
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        open_ones.append(connection)
    for connection in open_ones[::2]:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        connection.close()
    make.mark("go")
    job.wait(logs=False)
    for connection in open_ones[1::2]:
        connection.close()
    assert [clusters.printed(job, rank) for rank in range(4)] == [["undisturbed 4"]] * 4


def test_strangers_that_come_first_do_not_take_a_hosts_place(make: clusters.Make) -> None:
    """While the hosts are still gathering: connections without the token, held open."""
    job = clusters.fit(make(ALLREDUCE, hosts=3, processes=1), wait=False, job_name="job-1")
    connections = []
    deadline = time.monotonic() + 10
    while not connections:
        assert time.monotonic() < deadline
        with contextlib.suppress(StopIteration, AssertionError, OSError):
            port = control_port("job-1")
            for number in range(40):
                connection = socket.create_connection(("127.0.0.1", port), timeout=5)
                connections.append(connection)
                connection.sendall(frame({"op": "hello", "host": f"algo-{number % 4}", "token": "wrong"}))
    job.wait(logs=False)
    for connection in connections:
        connection.close()
    assert sorted(clusters.reports(job)) == [0, 1, 2]


def test_garbage_on_the_records_socket_does_not_disturb_a_job(make: clusters.Make) -> None:
    job = make.start("import aid\naid.mark('ready-0')\naid.wait_for('go')\nprint('undisturbed')", ready=1)
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
    assert clusters.printed(job) == ["undisturbed"]


# --- places ---


def test_everything_of_a_job_is_its_users_alone(make: clusters.Make) -> None:
    old = os.umask(0)
    try:
        job = make.start(
            "from mpi4py import MPI\nimport aid\nprint('here')\naid.mark(f'ready-{aid.RANK}')\naid.wait_for('go')",
            hosts=2,
            processes=1,
            ready=2,
        )
        clusters.until(lambda: clusters.printed(job) == ["here"] * 2)
    finally:
        os.umask(old)
    snapshot = clusters.Snapshot(job)
    assert any(path.is_dir() for path in snapshot.files)
    for path in snapshot.files:
        if path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in (job.record.path, job.record.path.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for name in ("status.json", "request.json", "options.json", "events.jsonl", "supervisor.log"):
        assert stat.S_IMODE((job.record.path / name).stat().st_mode) == 0o600, name
    for host in job.hosts:
        for path in job.record.log_dir(host, 0).iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    make.mark("go")
    job.wait(logs=False)


@pytest.mark.parametrize("kind", ["longest", "longer", "long", "spaces"])
def test_odd_temporary_folders(
    kind: str, make: clusters.Make, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A socket's path has 107 characters, and mpirun splits its parameters at spaces."""
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(short))
    limit = 107 - len("/fleetfit-12345678/algo-10000/host.sock")
    length = {"longest": limit, "longer": limit + 1, "long": 250}.get(kind)
    folder = short / ("t" * (length - len(str(short)) - 1) if length else "odd 'tmp' $x;")
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
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
    assert [said["total"] for said in clusters.reports(job).values()] == [4] * 4
    assert {said["tmp"] for said in clusters.reports(job).values()} == {str(folder)}
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["long", "spaces"])
def test_odd_homes(kind: str, make: clusters.Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("h" * 150 if kind == "long" else "home with 'odd' \"spaces\"; $x ü")
    monkeypatch.setenv("FLEETFIT_HOME", str(folder))
    job = make.run(ALLREDUCE, hosts=2, processes=2)
    assert sorted(clusters.reports(job)) == [0, 1, 2, 3]
    assert job.record.path.is_relative_to(folder)


def test_a_surrounding_mpi_job_does_not_confuse_ours(make: clusters.Make, tmp_path: Path) -> None:
    """fit() called from a script that mpirun started."""
    estimator = make(ALLREDUCE, hosts=2, processes=1)
    caller = clusters.Caller(
        'estimator.fit(job_name="job-1", logs=False)\nprint("returned")',
        estimator,
        tmp_path,
        python=(
            str(Path(sys.executable).parent / "mpirun"),
            "--allow-run-as-root", "--oversubscribe", "-np", "1", "--mca", "orte_tmpdir_base", str(tmp_path),
            sys.executable,
        ),
    )  # fmt: skip
    job = caller.job("job-1")
    assert caller.wait() == 0, caller.errors.read_text()
    assert [said["total"] for said in clusters.reports(job).values()] == [150, 150]


def test_a_closed_standard_input_and_output_of_the_caller(make: clusters.Make, tmp_path: Path) -> None:
    """As from a daemon: descriptors 0, 1 and 2 are free for sockets and pipes."""
    estimator = make(ALLREDUCE, hosts=2, processes=1)
    caller = clusters.Caller(
        'estimator.fit(job_name="job-1", logs=False)',
        estimator,
        tmp_path,
        python=("/bin/sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable),
    )
    job = caller.job("job-1")
    assert caller.wait() == 0
    assert sorted(clusters.reports(job)) == [0, 1]


def test_the_launcher_never_imports_tensorflow(make: clusters.Make) -> None:
    """Nor anything else that costs seconds; looked at in what the running processes have mapped."""
    job = make.start("import aid\naid.mark('ready-0')\naid.wait_for('go')", processes=1, ready=1)
    snapshot = clusters.Snapshot(job)
    for one in (snapshot.supervisor, snapshot.find("toolkit"), snapshot.find("wrapper")):
        maps = Path(f"/proc/{one.pid}/maps").read_text()
        for heavy in ("tensorflow", "numpy", "pandas", "mpi4py"):
            assert heavy not in maps, (one.kind, heavy)
    make.mark("go")
    job.wait(logs=False)


def test_many_open_descriptors_of_the_caller_do_not_leak(make: clusters.Make) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    inherited = [os.dup(write) for _ in range(20)]
    for fd in inherited:
        os.set_inheritable(fd, True)
    try:
        job = make.run(
            """
            import os
            import aid
            aid.report(fds={fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                            if os.path.lexists(f"/proc/self/fd/{fd}")})
            """,
            hosts=2,
            processes=1,
        )
    finally:
        for fd in (read, write, *inherited):
            os.close(fd)
    for said in clusters.reports(job).values():
        sockets = [target for target in said["fds"].values() if target.startswith("socket")]
        assert len(said["fds"]) <= 6, said["fds"]  # 0, 1, 2, the events, the listing itself
        assert not sockets or "mpi" in str(sockets)


def test_ps_shows_no_secret(make: clusters.Make) -> None:
    """The job's token is on no command line."""
    job = make.start("import aid\naid.mark('ready-0')\naid.wait_for('go')", hosts=2, processes=1, ready=1)
    tokens = {
        one.environ["FLEETFIT_JOB_TOKEN"] for one in clusters.marked(job.name) if "FLEETFIT_JOB_TOKEN" in one.environ
    }
    assert len(tokens) == 1
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert tokens.pop() not in listing
    make.mark("go")
    job.wait(logs=False)
