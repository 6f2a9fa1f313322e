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

HOSTS, PROCESSES = 2, 2

#: What is killed, and what the record says then: status, and words of the reason.
VICTIMS = {
    "toolkit-1": ("Failed", ["algo-1", "killed by SIGKILL"]),
    "toolkit-2": ("Failed", ["algo-2"]),
    "mpirun": ("Failed", ["algo-1, mpirun: was killed by SIGKILL"]),
    "orted-1": ("Failed", ["algo-1, orted: was killed by SIGKILL"]),
    "orted-2": ("Failed", ["algo-2, orted: was killed by SIGKILL"]),
    "rsh-1": ("Failed", ["algo-1, rsh", "remote shell to algo-1"]),
    "rsh-2": ("Failed", ["algo-1, rsh", "remote shell to algo-2"]),
    "wrapper-1": ("Failed", ["algo-1, rank 1", "killed by SIGKILL together with the process that started it"]),
    "wrapper-3": ("Failed", ["algo-2, rank 3", "killed by SIGKILL together with the process that started it"]),
    "rank-0": ("Failed", ["algo-1, rank 0: was killed by SIGKILL"]),
    "rank-2": ("Failed", ["algo-2, rank 2: was killed by SIGKILL"]),
}

#: The same under the other strategies: ``-`` and a number is a host for toolkits and servers, else a rank.
OTHERS = {
    shapes.NONE: ["toolkit-2", "wrapper-1"],
    shapes.COLLECTIVE: ["toolkit-1", "toolkit-2", "wrapper-2", "rank-0"],
    shapes.SERVERS: ["toolkit-1", "toolkit-2", "wrapper-2", "rank-0", "rank-1", "server-1", "server-2"],
}


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


@pytest.mark.parametrize("name", VICTIMS)
def test_after_sigkill_of_one_process_nothing_is_left(name: str, make: clusters.Make) -> None:
    job = make.start(STUBBORN, hosts=HOSTS, processes=PROCESSES, ready=HOSTS * PROCESSES)
    snapshot = whole(job)
    victim(snapshot, name).kill()
    snapshot.await_end()
    status, words = VICTIMS[name]
    assert clusters.await_terminal(job) == status
    reason = job.describe()["FailureReason"]
    for word in words:
        assert word in reason
    snapshot.await_tidy()


@pytest.mark.parametrize(("shape", "name"), [(shape, name) for shape, names in OTHERS.items() for name in names])
def test_it_holds_under_every_strategy(shape: shapes.Shape, name: str, make: clusters.Make) -> None:
    kind, _, number = name.partition("-")
    if kind in ("toolkit", "server"):
        place = f"algo-{number}" + (", ps" if kind == "server" else "")
    else:
        place = shape.place(int(number))

    job = make.start(STUBBORN, ready=shape.size, **shape.settings)
    snapshot = whole(job, shape)
    victim(snapshot, name).kill()
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Failed"
    reason = job.describe()["FailureReason"]
    assert reason.startswith(place), reason
    assert "SIGKILL" in reason or kind == "toolkit", reason
    snapshot.await_tidy()


@pytest.mark.parametrize("name", ["mpirun", "rank-0", "toolkit-2"])
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
def test_after_sigkill_of_the_supervisor_nothing_is_left(shape: shapes.Shape, make: clusters.Make) -> None:
    job = make.start(STUBBORN, ready=shape.size, **shape.settings)
    snapshot = whole(job, shape)
    snapshot.supervisor.kill()
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Failed"
    assert "supervisor" in job.describe()["FailureReason"]
    snapshot.await_tidy()


@pytest.mark.landing
@shapes.every
def test_after_sigkill_of_a_caller_that_waits_nothing_is_left(
    shape: shapes.Shape, make: clusters.Make, tmp_path: Path
) -> None:
    name = f"job-{len(os.listdir(tmp_path))}"
    caller = clusters.Caller(f"estimator.fit(job_name={name!r})", make(STUBBORN, **shape.settings), tmp_path / name)
    job = caller.job(name)
    make.await_ready(shape.size, job)
    snapshot = whole(job, shape)
    caller.process.kill()
    caller.wait()
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Stopped"
    assert not snapshot.files_left()
    # the supervisor too, and its collector of provenance, which works beside the training
    clusters.until(lambda: not snapshot.supervisor.alive)


def test_a_fork_of_the_caller_does_not_keep_the_job(make: clusters.Make, tmp_path: Path) -> None:
    """A child of multiprocessing's holds a copy of everything that the caller had open."""
    program = """
    import multiprocessing, threading, time
    from pathlib import Path
    def sleeper():
        Path({pid!r}).write_text(str(__import__("os").getpid()))
        time.sleep(300)
    def fork_when_ready():
        while not Path({ready!r}).exists():
            time.sleep(0.01)
        multiprocessing.get_context("fork").Process(target=sleeper).start()
    threading.Thread(target=fork_when_ready).start()
    estimator.fit(job_name="job-1", logs=False)
    """.format(pid=str(tmp_path / "child"), ready=str(make.marks / "ready-0"))
    caller = clusters.Caller(program, make(STUBBORN, hosts=1, processes=1), tmp_path)
    job = caller.job("job-1")
    make.await_ready(1, job)
    clusters.until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    child = clusters.process(int((tmp_path / "child").read_text()))
    assert child is not None
    try:
        snapshot = clusters.Snapshot(job)
        caller.process.kill()
        caller.wait()
        snapshot.await_end()
        assert clusters.await_terminal(job) == "Stopped"
        assert child.alive
    finally:
        child.kill()


def test_fit_in_a_process_of_multiprocessing_ends_with_it(make: clusters.Make, tmp_path: Path) -> None:
    program = """
    import multiprocessing, os, signal, time
    def work():
        estimator.fit(job_name="job-1", logs=False)
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    while not os.path.exists({go!r}):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    time.sleep(300)
    """.format(go=str(tmp_path / "go"))
    caller = clusters.Caller(program, make(STUBBORN, hosts=1, processes=2), tmp_path)
    try:
        job = caller.job("job-1")
        make.await_ready(2, job)
        snapshot = clusters.Snapshot(job)
        (tmp_path / "go").touch()
        snapshot.await_end()
        assert clusters.await_terminal(job) == "Stopped"
    finally:
        caller.process.kill()


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


@pytest.mark.parametrize("processes", [None, 2])
def test_a_job_whose_rank_is_frozen_can_be_ended(processes: int | None, make: clusters.Make) -> None:
    """SIGSTOP is as good as a hang: nothing that we send is answered."""
    job = make.start(
        """
        import time
        import aid
        aid.mark(f"ready-{aid.RANK}")
        time.sleep(300)
        """,
        processes=processes,
        ready=1,
        options={"stop_grace": 0.5},
    )
    snapshot = clusters.Snapshot(job)
    snapshot.rank(0).kill(signal.SIGSTOP)
    job.stop(wait=True)
    assert job.status == "Stopped"
    assert snapshot.left() == []


@pytest.mark.parametrize("frozen", ["mpirun", "orted-2", "wrapper-2", "toolkit-2"])
def test_a_frozen_process_of_ours_does_not_hold_up_the_end(frozen: str, make: clusters.Make) -> None:
    job = make.start(STUBBORN, hosts=HOSTS, processes=PROCESSES, ready=HOSTS * PROCESSES)
    snapshot = clusters.Snapshot(job)
    victim(snapshot, frozen).kill(signal.SIGSTOP)
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


def test_every_reader_says_that_the_supervisor_is_lost(make: clusters.Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is left to write it down: the record on disk still says that the job runs."""
    job = make.start(STUBBORN, ready=2, **shapes.NONE.settings)
    snapshot = clusters.Snapshot(job)
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
