"""Whatever is killed, nothing of the job is left two seconds later, and the record says what happened."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import clusters
import pytest
import shapes

from estimators import TensorFlow, TrainingJob, TrainingJobError
from estimators.cli import main

#: Ranks that do what they can to stay: they ignore signals, and leave helpers of every kind behind.
STUBBORN = """
import os, signal, subprocess, sys, time
import aid

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
helpers = [
    subprocess.Popen(SLEEP),
    subprocess.Popen(SLEEP, start_new_session=True, env={}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
]
if os.fork() == 0:  # a daemon by the book: two forks, a session of its own, nothing inherited
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    os.closerange(0, 256)
    os.chdir("/")
    os.execve(sys.executable, SLEEP, {})
os.wait()

if "OMPI_COMM_WORLD_RANK" in os.environ:
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()
aid.mark(f"ready-{aid.RANK}")
if "OMPI_COMM_WORLD_RANK" in os.environ:
    MPI.COMM_WORLD.Barrier()
while True:
    signal.pause()
"""

#: What is killed under which strategy (``-`` and a number is a host for toolkits, daemons and servers, else a rank),
#: and words of the reason that the record has then.
VICTIMS = [
    (shapes.MPI_, "toolkit-1", ["algo-1", "killed by SIGKILL"]),
    (shapes.MPI_, "toolkit-2", ["algo-2"]),
    (shapes.MPI_, "mpirun", ["algo-1, mpirun: was killed by SIGKILL"]),
    (shapes.MPI_, "orted-1", ["algo-1, orted: was killed by SIGKILL"]),
    (shapes.MPI_, "orted-2", ["algo-2, orted: was killed by SIGKILL"]),
    (shapes.MPI_, "rsh-2", ["algo-1, rsh", "remote shell to algo-2"]),
    (shapes.MPI_, "wrapper-3", ["algo-2, rank 3", "killed by SIGKILL together with the process that started it"]),
    (shapes.MPI_, "rank-2", ["algo-2, rank 2: was killed by SIGKILL"]),
    (shapes.NONE, "toolkit-2", ["algo-2"]),
    (shapes.NONE, "wrapper-1", ["algo-2, rank 1", "SIGKILL"]),
    (shapes.COLLECTIVE, "wrapper-2", ["algo-2, rank 2", "SIGKILL"]),
    (shapes.COLLECTIVE, "rank-0", ["algo-1, rank 0", "SIGKILL"]),
    (shapes.SERVERS, "toolkit-1", ["algo-1"]),
    (shapes.SERVERS, "wrapper-2", ["algo-2, worker", "SIGKILL"]),
    (shapes.SERVERS, "rank-0", ["algo-1, chief", "SIGKILL"]),
    (shapes.SERVERS, "server-1", ["algo-1, ps: was killed by SIGKILL"]),
    (shapes.SERVERS, "server-2", ["algo-2, ps: was killed by SIGKILL"]),
]


def victim(snapshot: clusters.Snapshot, name: str) -> clusters.Process:
    kind, _, number = name.partition("-")
    if kind == "rank":
        return snapshot.rank(int(number))
    if kind == "wrapper":
        started = snapshot.started(int(number))
        told = {
            "OMPI_COMM_WORLD_RANK": number,
            "FLEETFIT_PROCESS": started.data["name"],
        }  # by mpirun, or by the toolkit
        return next(
            one
            for one in snapshot.members
            if one.kind == "wrapper"
            and one.host == started.host
            and any(one.environ.get(variable) == value for variable, value in told.items())
        )
    return snapshot.find(kind, f"algo-{number}" if number else None)


def lacking(snapshot: clusters.Snapshot, shape: shapes.Shape = shapes.MPI_) -> dict[str, Any]:
    """What a snapshot has not of what the test is about, so that none can pass by looking at nothing."""
    wrapped = shape.size + len(shape.servers)
    counts = {"toolkit": 2, "wrapper": wrapped, "rank": shape.size, "server": len(shape.servers)}
    if shape is shapes.MPI_:
        counts |= {"mpirun": 1, "orted": 2, "rsh": 2}
    found = {kind: [(one.pid, one.argv[:8]) for one in snapshot.members if one.kind == kind] for kind in counts}
    wrong: dict[str, Any] = {kind: found[kind] for kind, count in counts.items() if len(found[kind]) != count}
    if (helpers := sum(one.kind == "other" for one in snapshot.members)) < 3 * shape.size:
        wrong["helpers"] = helpers
    if not snapshot.files:
        wrong["temporary files"] = 0
    return wrong


def whole(job: TrainingJob, shape: shapes.Shape = shapes.MPI_) -> clusters.Snapshot:
    """A snapshot of all that the job has: a server may still be starting when the ranks are ready."""
    seen: dict[str, Any] = {}

    def taken() -> clusters.Snapshot | None:
        nonlocal seen
        snapshot = clusters.Snapshot(job)
        seen = lacking(snapshot, shape)
        return None if seen else snapshot

    found = clusters.until(taken, say=lambda: seen)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("shape", "name", "words"), VICTIMS, ids=lambda value: "" if isinstance(value, list) else str(value)
)
def test_after_sigkill_of_one_process_nothing_is_left(
    shape: shapes.Shape, name: str, words: list[str], make: clusters.Make
) -> None:
    job = make.start(STUBBORN, ready=shape.size, **shape.settings)
    snapshot = whole(job, shape)
    victim(snapshot, name).kill()
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Failed"
    reason = job.describe()["FailureReason"]
    assert reason.startswith(words[0]) and all(word in reason for word in words), reason
    snapshot.await_tidy()


@pytest.mark.parametrize("name", ["rank-0", "toolkit-2"])
def test_a_flood_of_output_does_not_hold_up_the_end(name: str, make: clusters.Make) -> None:
    """What waits to be written is written, and is never so much that it takes long."""

    job = make.start(
        """
        import aid
        aid.mark(f"ready-{aid.RANK}")
        while True:
            print("x" * 80)
        """,
        hosts=3,
        processes=2,
        ready=6,
    )
    clusters.until(lambda: sum(path.stat().st_size for path in job.record.hosts_dir.rglob("rank-*.log")) > 10 << 20)
    snapshot = clusters.Snapshot(job)
    victim(snapshot, name).kill()
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Failed"


@pytest.mark.landing
@shapes.every
def test_after_sigkill_of_the_supervisor_nothing_is_left_and_every_reader_says_so(
    shape: shapes.Shape, make: clusters.Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is left to write it down: the record on disk still says that the job runs."""
    job = make.start(STUBBORN, ready=shape.size, **shape.settings)
    snapshot = whole(job, shape)
    snapshot.supervisor.kill()
    snapshot.await_end()
    clusters.until(lambda: not job.record.is_supervised())
    stored = json.loads((job.record.path / "status.json").read_text())
    assert stored["TrainingJobStatus"] == "InProgress"
    attached = TensorFlow.attach(job.name).latest_training_job
    assert attached is not None
    for handle in (job, attached, TrainingJob.attach(job.name)):
        assert handle.status == "Failed"
        assert handle.failure is not None and handle.failure.message.startswith("supervisor lost")
        assert handle.describe()["FailureReason"].startswith("supervisor lost")
        with pytest.raises(TrainingJobError, match="supervisor lost"):
            handle.wait(logs=False)
        handle.stop(wait=True)  # there is nothing to stop, which is no error
    capsys.readouterr()
    assert main.main(["list"]) == 0
    assert re.search(rf"{job.name}\s.*Failed", capsys.readouterr().out)
    assert main.main(["describe", job.name]) == 0
    assert "supervisor lost" in capsys.readouterr().out
    assert main.main(["describe", job.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["TrainingJobStatus"] == "Failed"
    assert main.main(["logs", "--follow", job.name]) == 0  # comes to an end
    assert main.main(["stop", job.name]) == 0
    snapshot.await_tidy()


@pytest.mark.landing
@shapes.every
def test_after_the_end_of_a_caller_that_waits_nothing_is_left(
    shape: shapes.Shape, make: clusters.Make, tmp_path: Path
) -> None:
    """Killed, or of a terminal that is closed."""
    name = f"job-{len(os.listdir(tmp_path))}"
    caller = clusters.Caller(f"estimator.fit(job_name={name!r})", make(STUBBORN, **shape.settings), tmp_path / name)
    job = caller.job(name)
    make.await_ready(shape.size, job)
    snapshot = whole(job, shape)
    caller.process.send_signal(signal.SIGHUP if shape is shapes.NONE else signal.SIGKILL)
    caller.wait()
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Stopped"
    assert not snapshot.files_left()
    # the supervisor too, and its collector of provenance, which works beside the training
    clusters.until(lambda: not snapshot.supervisor.alive)


def test_neither_a_fork_of_the_caller_nor_its_parent_keeps_the_job(make: clusters.Make, tmp_path: Path) -> None:
    """A child of multiprocessing's holds a copy of everything that the caller, one itself, had open."""
    program = """
    import multiprocessing, os, threading, time
    from pathlib import Path
    fork = multiprocessing.get_context("fork")
    def sleeper():
        Path({child!r}).write_text(str(os.getpid()))
        time.sleep(300)
    def fork_when_ready():
        while not Path({ready!r}).exists():
            time.sleep(0.01)
        fork.Process(target=sleeper).start()
    def work():
        Path({caller!r}).write_text(str(os.getpid()))
        threading.Thread(target=fork_when_ready).start()
        estimator.fit(job_name="job-1", logs=False)
    fork.Process(target=work).start()
    time.sleep(300)
    """.format(child=str(tmp_path / "child"), caller=str(tmp_path / "caller"), ready=str(make.marks / "ready-1"))
    parent = clusters.Caller(program, make(STUBBORN, hosts=1, processes=2), tmp_path)
    job = parent.job("job-1")
    make.await_ready(2, job)
    clusters.until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    child, caller = (clusters.process(int((tmp_path / name).read_text())) for name in ("child", "caller"))
    assert child is not None and caller is not None
    try:
        snapshot = clusters.Snapshot(job)
        caller.kill()
        snapshot.await_end()
        assert clusters.await_terminal(job) == "Stopped"
        assert child.alive and parent.process.poll() is None
    finally:
        child.kill()
        parent.process.kill()


@shapes.every
def test_helpers_of_ranks_that_ended_well_are_ended(shape: shapes.Shape, make: clusters.Make) -> None:
    """A script that is done leaves helpers behind: the job completes all the same, and takes them with it."""
    job = make.run(
        """
        import os, subprocess, sys, time
        import aid
        sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
        first = subprocess.Popen(sleep)  # holds our output open
        second = subprocess.Popen(sleep, start_new_session=True, env={}, stdout=subprocess.DEVNULL)
        aid.report(pids=[first.pid, second.pid])
        aid.mark(f"reported-{aid.RANK}")
        for rank in range(aid.RANK == 0 and int(os.environ["RANKS"])):  # the chief's end would be everybody's
            aid.wait_for(f"reported-{rank}")
        """,
        environment={"RANKS": str(shape.size)},
        **shape.settings,
    )
    assert job.status == "Completed"
    pids = [pid for said in clusters.reports(job).values() for pid in said["pids"]]
    assert len(pids) == 2 * shape.size
    assert [pid for pid in pids if clusters.process(pid) is not None] == []


@pytest.mark.parametrize("frozen", ["rank-0", "mpirun", "orted-2", "wrapper-2", "toolkit-2"])
def test_a_frozen_process_does_not_hold_up_the_end(frozen: str, make: clusters.Make) -> None:
    """SIGSTOP is as good as a hang: nothing that we send is answered."""
    job = make.start(STUBBORN, ready=shapes.MPI_.size, options={"stop_grace": 0.5}, **shapes.MPI_.settings)
    snapshot = clusters.Snapshot(job)
    victim(snapshot, frozen).kill(signal.SIGSTOP)
    if frozen == "rank-0":
        job.stop(wait=True)
        assert job.status == "Stopped"
        assert snapshot.left() == []
        return
    snapshot.rank(0).kill()
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Failed"
    failure = json.loads((job.record.path / "status.json").read_text())["Fleetfit"]["failure"]
    assert (failure["rank"], failure["signal"]) == (0, signal.SIGKILL)


def test_the_next_job_removes_what_a_job_that_was_killed_as_a_whole_left(make: clusters.Make) -> None:
    """Nobody of it is left to remove its temporary folders; in shared memory they hold memory."""
    job = make.start(STUBBORN, ready=shapes.MPI_.size, **shapes.MPI_.settings)
    snapshot = clusters.Snapshot(job)
    while family := [
        one for one in {snapshot.supervisor, *snapshot.left(), *clusters.below(snapshot.supervisor.pid)} if one.alive
    ]:
        for one in family:
            one.kill_if_alive()
    # The record's lock is free when the last thread of the last of them has let go of it, some moments after its death.
    clusters.until(lambda: job.status == "Failed")
    assert "supervisor lost" in job.describe()["FailureReason"]
    left = [path for path in snapshot.files_left() if path.is_dir()]
    assert {path.parent for path in left} >= {Path("/dev/shm")}, snapshot.files
    for path in left:  # a young folder may be that of a job that is starting
        os.utime(path, (0, 0))
    make.run("print('done')")
    clusters.until(lambda: not any(path.exists() for path in left))
