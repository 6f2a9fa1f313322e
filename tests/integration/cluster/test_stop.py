"""Ending a job on purpose: stop(), max_run, Ctrl-C, a caller that goes, and one that comes later."""

from __future__ import annotations

import signal
import subprocess
import tarfile
import time
from pathlib import Path

import clusters
import pytest
import shapes

from estimators import TrainingJob

#: Notes SIGTERM, saves for as many seconds as ``seconds`` says for its rank, ends well.
SAVING = """
import json, os, signal, sys, time
import aid

SECONDS = json.loads(os.environ["SECONDS_TO_SAVE"])

def save(number, frame):
    aid.mark(f"told-{aid.RANK}", time.time())
    time.sleep(SECONDS[aid.RANK])
    with open(os.path.join(os.environ["SM_MODEL_DIR"], f"weights-{aid.RANK}"), "w") as file:
        file.write("so far")
    aid.mark(f"saved-{aid.RANK}", time.time())
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
if "OMPI_COMM_WORLD_RANK" in os.environ:
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()
aid.mark(f"ready-{aid.RANK}")
while True:
    time.sleep(0.05)
"""

#: Saves, and does not end.
DEAF = """
import os, signal
import aid

def save(number, frame):
    with open(os.path.join(os.environ["SM_MODEL_DIR"], f"weights-{aid.RANK}"), "w") as file:
        file.write("so far")

signal.signal(signal.SIGTERM, save)
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("deaf", flush=True)
aid.mark(f"ready-{aid.RANK}")
while True:
    signal.pause()
"""


def saving(*seconds: float) -> dict[str, str]:
    return {"SECONDS_TO_SAVE": str(list(seconds))}


def model_of(job: TrainingJob) -> dict[str, bytes]:
    """The files of the job's model."""
    assert job.model_data is not None
    with tarfile.open(job.model_data) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]


def transitions(job: TrainingJob) -> list[str]:
    return [step["Status"] for step in job.describe()["SecondaryStatusTransitions"]]


@pytest.mark.landing
@pytest.mark.parametrize(
    ("shape", "how"),
    [
        *((shape, "stop") for shape in shapes.ALL),
        *((shape, "Ctrl-C") for shape in (shapes.NONE, shapes.MPI_)),
        *((shape, "SIGTERM") for shape in (shapes.COLLECTIVE, shapes.SERVERS)),  # as when a machine shuts down
    ],
    ids=str,
)
def test_one_rank_saves_while_the_others_end_at_once(
    shape: shapes.Shape, how: str, make: clusters.Make, tmp_path: Path
) -> None:
    """Under parameter servers the chief ends at once, and so does not take a worker that saves with it."""
    seconds = [0.0] * shape.size
    seconds[-1] = 2.0
    caller = clusters.Caller(
        """
        try:
            estimator.fit(job_name="job-1", wait=WAIT)
        except KeyboardInterrupt:
            print("interrupted;", estimator.latest_training_job.status)
        """.replace("WAIT", str(how == "Ctrl-C")),
        make(SAVING, environment=saving(*seconds), **shape.settings),
        tmp_path,
    )
    job = caller.job("job-1")
    make.await_ready(shape.size, job)
    snapshot = clusters.Snapshot(job)
    if how == "Ctrl-C":
        caller.process.send_signal(signal.SIGINT)
    elif how == "stop":
        job.stop()
    else:
        snapshot.supervisor.kill(signal.SIGTERM)
    make.marked(f"told-{shape.size - 1}")
    clusters.until(lambda: job.status == "Stopping")  # for two seconds
    assert clusters.await_terminal(job) == "Stopped"
    assert caller.wait() == 0
    if how == "Ctrl-C":
        said = caller.output.read_text()
        assert "stopping training job job-1: the script has 5 s to save" in said
        assert said.rstrip().endswith("interrupted; Stopped")
    for rank in range(shape.size):
        took = float(make.marked(f"saved-{rank}")) - float(make.marked(f"told-{rank}"))
        assert took >= seconds[rank]
        assert clusters.printed(job, rank) == ["saved"]
    assert snapshot.left() == []
    assert model_of(job) == {f"weights-{rank}": b"so far" for rank in range(shape.size)}
    assert transitions(job)[-2:] == ["Stopping", "Stopped"]
    assert "FailureReason" not in job.describe()


@shapes.every
def test_a_script_that_does_not_end_is_killed_after_the_grace_and_what_it_saved_is_kept(
    shape: shapes.Shape, make: clusters.Make
) -> None:
    own = shape is shapes.NONE  # whether it is the job's own grace, and not that of the call
    job = make.start(DEAF, ready=shape.size, options={"stop_grace": 1.0 if own else 120.0}, **shape.settings)
    snapshot = clusters.Snapshot(job)
    start = time.monotonic()
    for _ in range(2):
        job.stop(grace=None if own else 1.0)  # again is harmless
    job.stop(wait=True)
    assert 1.0 <= time.monotonic() - start < 60
    assert job.status == "Stopped"
    assert snapshot.left() == []
    assert model_of(job) == {f"weights-{rank}": b"so far" for rank in range(shape.size)}
    job.stop(wait=True)  # so is that of a job that is over


# --- callers ---


def test_a_second_ctrl_c_ends_a_job_that_does_not_listen_at_once(make: clusters.Make, tmp_path: Path) -> None:
    caller = clusters.Caller('estimator.fit(job_name="job-1")', make(DEAF, hosts=2, processes=2), tmp_path)
    job = caller.job("job-1")
    make.await_ready(4, job)
    snapshot = clusters.Snapshot(job)
    caller.process.send_signal(signal.SIGINT)
    clusters.until(lambda: "the script has 5 s to save" in caller.output.read_text())
    caller.process.send_signal(signal.SIGINT)
    assert caller.wait() == -signal.SIGINT
    assert caller.errors.read_text() == "", "all of it is said once"
    said = caller.output.read_text()
    assert "training job job-1: stopped." in said and "job-1  Stopped" in said
    assert job.status == "Stopped"
    assert snapshot.left() == []
    events = list(job.record.events())
    asked = next(event.time_ns for event in events if event.data.get("name") == "stopping")
    stopped = max(event.time_ns for event in events if event.kind == "stopped")
    assert stopped - asked < 5e9, "the time to save was waited for, and not the second Ctrl-C"


def test_another_process_attaches_follows_and_stops(make: clusters.Make, tmp_path: Path) -> None:
    estimator = make(
        """
        import signal, time
        import aid
        number = 0
        def stop(number_, frame):
            raise SystemExit(0)
        signal.signal(signal.SIGTERM, stop)
        aid.mark(f"ready-{aid.RANK}")
        while True:
            print(f"step {number}", flush=True)
            number += 1
            time.sleep(0.01)
        """,
        hosts=2,
        processes=1,
    )
    job = clusters.fit(estimator, wait=False, job_name="job-1")
    make.await_ready(2, job)
    follower = clusters.Caller(
        'TensorFlow.attach("job-1").latest_training_job.logs(follow=True, all=True)', estimator, tmp_path
    )
    single = clusters.Caller(
        'TensorFlow.attach("job-1").latest_training_job.logs(rank=1, follow=True)', estimator, tmp_path
    )
    waiter = clusters.Caller('TensorFlow.attach("job-1").latest_training_job.wait(logs=False)', estimator, tmp_path)
    clusters.until(lambda: "step 20" in follower.output.read_text() and "step 20" in single.output.read_text())
    onlooker = clusters.Caller('TensorFlow.attach("job-1").latest_training_job.wait()', estimator, tmp_path)
    clusters.until(lambda: "step 0" in onlooker.output.read_text())
    onlooker.process.send_signal(signal.SIGINT)
    assert onlooker.wait() == -signal.SIGINT
    assert job.status == "InProgress", "Ctrl-C where one merely looks on has ended more than the looking on"
    assert len(clusters.marked(job.name)) >= 3
    stopper = clusters.Caller(
        'job = TensorFlow.attach("job-1").latest_training_job\njob.stop(wait=True)\nprint(job.status)',
        estimator,
        tmp_path,
    )
    assert stopper.wait() == 0
    assert stopper.output.read_text() == "Stopped\n"
    assert [follower.wait(), single.wait(), waiter.wait()] == [0, 0, 0]
    for rank in (0, 1):
        steps = clusters.printed(job, rank)
        assert steps == [f"step {number}" for number in range(len(steps))]
        tag = f"[algo-{rank + 1}:rank {rank}] "
        shown = [line.removeprefix(tag) for line in follower.output.read_text().splitlines() if line.startswith(tag)]
        assert shown == steps
    assert single.output.read_text().splitlines() == [f"[algo-2:rank 1] {line}" for line in clusters.printed(job, 1)]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        *((shapes.MPI_, kind) for kind in ("mpirun", "orted")),
        *((shape, "toolkit") for shape in (shapes.MPI_, shapes.SERVERS)),
    ],
    ids=str,
)
def test_sigterm_to_one_of_our_processes_ends_the_job_and_is_told(
    shape: shapes.Shape, kind: str, make: clusters.Make
) -> None:
    """Not everybody who tidies up sends SIGKILL. No rank is blamed."""
    job = make.start(SAVING, ready=shape.size, environment=saving(*[0.2] * shape.size), **shape.settings)
    snapshot = clusters.Snapshot(job)
    host = {"mpirun": None, "orted": "algo-1", "toolkit": "algo-2"}[kind]
    snapshot.find(kind, host).kill(signal.SIGTERM)
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Failed"
    words = {
        "mpirun": ("algo-1, mpirun: ", "algo-1, orted: "),  # it ends its daemons, which may be gone before it
        "orted": ("algo-1, orted: ",),
        "toolkit": ("algo-2: the host's training process was stopped by another program (SIGTERM). The script",),
    }
    reason = job.describe()["FailureReason"]
    assert reason.startswith(words[kind])
    assert kind == "toolkit" or "After a request to stop (SIGTERM or SIGINT)" in reason
    assert "has lost communication" not in clusters.all_text(job)
    if kind == "toolkit":
        assert [clusters.printed(job, rank) for rank in range(shape.size)] == [["saved"]] * shape.size


def test_an_mpirun_that_takes_long_to_go_is_told_all_the_same(make: clusters.Make, tmp_path: Path) -> None:
    """Its daemons, remote shells and ranks are gone a while before it is, as on a busy machine."""
    source, library = tmp_path / "slow.cpp", tmp_path / "slow.so"
    source.write_text(
        """
        #include <cerrno>
        #include <cstring>
        #include <unistd.h>
        __attribute__((destructor)) static void linger() {
            if (std::strcmp(program_invocation_short_name, "mpirun") == 0) usleep(1500000);
        }
        """
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    shape = shapes.MPI_
    environment = {**saving(*[0.2] * shape.size), "LD_PRELOAD": str(library)}
    job = make.start(SAVING, ready=shape.size, environment=environment, **shape.settings)
    snapshot = clusters.Snapshot(job)
    snapshot.find("mpirun").kill(signal.SIGTERM)
    assert clusters.await_terminal(job) == "Failed"
    assert job.describe()["FailureReason"].startswith("algo-1, mpirun: exited with code 1 and printed nothing")
    assert snapshot.left() == []
