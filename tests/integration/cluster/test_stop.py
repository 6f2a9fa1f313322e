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

from estimators import TensorFlow, TrainingJob
from estimators.records.record import job_names

#: Notes SIGTERM, saves for as many seconds as ``seconds`` says for its rank, ends well.
SAVING = """
import json, os, signal, sys, time
import aid

SECONDS = json.loads(os.environ["SECONDS_TO_SAVE"])

def save(number, frame):
    aid.mark(f"told-{aid.RANK}", time.time())
    time.sleep(SECONDS[aid.RANK])
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

#: Does not listen.
DEAF = """
import signal
import aid
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("deaf", flush=True)
aid.mark(f"ready-{aid.RANK}")
while True:
    signal.pause()
"""


def saving(*seconds: float) -> dict[str, str]:
    return {"SECONDS_TO_SAVE": str(list(seconds))}


def transitions(job: TrainingJob) -> list[str]:
    return [step["Status"] for step in job.describe()["SecondaryStatusTransitions"]]


@shapes.every
def test_one_rank_saves_for_three_seconds_while_the_others_end_at_once(
    shape: shapes.Shape, make: clusters.Make
) -> None:
    """Under parameter servers the chief ends at once, and so does not take a worker that saves with it."""
    ranks = shape.size
    seconds = [0.0] * ranks
    seconds[-1] = 3.0
    job = make.start(SAVING, ready=ranks, environment=saving(*seconds), **shape.settings)
    snapshot = clusters.Snapshot(job)
    job.stop()
    make.marked(f"told-{ranks - 1}")
    assert job.status == "Stopping"  # for three seconds
    assert clusters.await_terminal(job) == "Stopped"
    for rank in range(ranks):
        took = float(make.marked(f"saved-{rank}")) - float(make.marked(f"told-{rank}"))
        assert took >= seconds[rank]
        assert clusters.printed(job, rank)[-1] == "saved"
    assert snapshot.left() == []
    assert transitions(job)[-2:] == ["Stopping", "Stopped"]
    assert "FailureReason" not in job.describe()


@shapes.every
def test_a_script_that_does_not_listen_is_killed_after_the_grace(shape: shapes.Shape, make: clusters.Make) -> None:
    job = make.start(DEAF, ready=shape.size, options={"stop_grace": 1.0}, **shape.settings)
    snapshot = clusters.Snapshot(job)
    start = time.monotonic()
    job.stop(wait=True)
    assert time.monotonic() - start >= 1.0
    assert job.status == "Stopped"
    assert snapshot.left() == []


def test_a_grace_of_the_call_wins(make: clusters.Make) -> None:
    job = make.start(DEAF, processes=2, ready=2)  # the job's own is two minutes
    start = time.monotonic()
    job.stop(wait=True, grace=0.5)
    assert job.status == "Stopped"
    assert 0.5 <= time.monotonic() - start < 60


@pytest.mark.parametrize("deaf", [False, True])
def test_the_model_of_a_stopped_job_is_kept(deaf: bool, make: clusters.Make) -> None:
    """What the script saves in its grace is collected, as SageMaker does it; also of one that was killed after it."""
    job = make.start(
        f"""
        import os, signal, sys, time
        import aid
        def save(number, frame):
            with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w") as file:
                file.write("so far")
            time.sleep(300) if {deaf} else sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        aid.mark("ready-0")
        time.sleep(300)
        """,
        ready=1,
        options={"stop_grace": 0.5},
    )
    job.stop(wait=True)
    assert job.status == "Stopped"
    assert job.model_data is not None
    with tarfile.open(job.model_data) as archive:
        member = archive.extractfile("weights")
        assert member is not None and member.read() == b"so far"


def test_stopping_twice_and_a_job_that_is_over_is_harmless(make: clusters.Make) -> None:
    job = make.start(SAVING, processes=1, ready=1, environment=saving(0.5))
    job.stop()
    job.stop()
    job.stop(wait=True)
    job.stop(wait=True)
    assert job.status == "Stopped"
    assert clusters.printed(job) == ["saved"]


# Without MPI: a rank that waits for another one in MPI_Init would not get to its handler.
@pytest.mark.parametrize("shape", [shapes.NONE, shapes.SERVERS], ids=str)
def test_max_run_stops_the_job_and_lets_it_save(shape: shapes.Shape, make: clusters.Make) -> None:
    job = make.run(SAVING, max_run=6, environment=saving(*[0.2, 0.5, 0.5][: shape.size]), **shape.settings)
    assert (job.status, job.secondary_status) == ("Stopped", "MaxRuntimeExceeded")
    assert [clusters.printed(job, rank) for rank in range(shape.size)] == [["saved"]] * shape.size


# --- callers ---


@pytest.mark.landing
@shapes.every
def test_ctrl_c_stops_the_job_with_five_seconds_to_save(
    shape: shapes.Shape, make: clusters.Make, tmp_path: Path
) -> None:
    caller = clusters.Caller(
        """
        try:
            estimator.fit(job_name="job-1")
        except KeyboardInterrupt:
            print("interrupted;", estimator.latest_training_job.status)
        """,
        make(SAVING, environment=saving(*[0.0] * (shape.size - 1), 1.0), **shape.settings),
        tmp_path,
    )
    job = caller.job("job-1")
    make.await_ready(shape.size, job)
    snapshot = clusters.Snapshot(job)
    caller.process.send_signal(signal.SIGINT)
    assert caller.wait() == 0
    said = caller.output.read_text()
    assert "stopping training job job-1: the script has 5 s to save" in said
    assert said.rstrip().endswith("interrupted; Stopped")
    assert job.status == "Stopped"
    assert [clusters.printed(job, rank) for rank in range(shape.size)] == [["saved"]] * shape.size
    assert snapshot.left() == []


def test_ctrl_c_ends_a_deaf_job_after_five_seconds(make: clusters.Make, tmp_path: Path) -> None:
    caller = clusters.Caller('estimator.fit(job_name="job-1")', make(DEAF, hosts=2, processes=1), tmp_path)
    job = caller.job("job-1")
    make.await_ready(2, job)
    snapshot = clusters.Snapshot(job)
    start = time.monotonic()
    caller.process.send_signal(signal.SIGINT)
    caller.wait()
    assert 4.9 <= time.monotonic() - start < 60
    assert caller.process.returncode == -signal.SIGINT
    assert job.status == "Stopped"
    assert snapshot.left() == []


def test_a_second_ctrl_c_ends_it_at_once(make: clusters.Make, tmp_path: Path) -> None:
    name = f"job-{len(job_names())}"
    caller = clusters.Caller(f"estimator.fit(job_name={name!r})", make(DEAF, hosts=2, processes=2), tmp_path / name)
    job = caller.job(name)
    make.await_ready(4, job)
    snapshot = clusters.Snapshot(job)
    caller.process.send_signal(signal.SIGINT)
    clusters.until(lambda: "the script has 5 s to save" in caller.output.read_text())
    caller.process.send_signal(signal.SIGINT)
    caller.wait()
    assert job.status == "Stopped"
    assert snapshot.left() == []
    events = list(job.record.events())
    asked = next(event.time_ns for event in events if event.data.get("name") == "stopping")
    stopped = max(event.time_ns for event in events if event.kind == "stopped")
    assert stopped - asked < 5e9, "the time to save was waited for, and not the second Ctrl-C"


def test_a_closed_terminal_ends_the_job(make: clusters.Make, tmp_path: Path) -> None:
    caller = clusters.Caller('estimator.fit(job_name="job-1")', make(DEAF, hosts=2, processes=1), tmp_path)
    job = caller.job("job-1")
    make.await_ready(2, job)
    snapshot = clusters.Snapshot(job)
    caller.process.send_signal(signal.SIGHUP)
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Stopped"


@shapes.every
def test_a_job_that_nobody_waits_for_outlives_its_caller(
    shape: shapes.Shape, make: clusters.Make, tmp_path: Path
) -> None:
    caller = clusters.Caller(
        'estimator.fit(job_name="job-1", wait=False)',
        make(
            """
            import aid
            aid.mark(f"ready-{aid.RANK}")
            aid.wait_for("go")
            print("went on", flush=True)
            aid.mark(f"ended-{aid.RANK}")
            for rank in (1, 2) if "chief" in aid.os.environ.get("TF_CONFIG", "") and aid.RANK == 0 else ():
                aid.wait_for(f"ended-{rank}")
            """,
            **shape.settings,
        ),
        tmp_path,
    )
    job = caller.job("job-1")
    assert caller.wait() == 0
    make.await_ready(shape.size, job)
    assert job.status == "InProgress"
    make.mark("go")
    job.wait(logs=False)
    assert job.status == "Completed"
    assert clusters.printed(job) == ["went on"] * shape.size


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


def test_a_waiting_attached_process_does_not_own_the_job(make: clusters.Make, tmp_path: Path) -> None:
    """Ctrl-C in a process that merely looks on ends the looking on."""
    estimator = make(DEAF, processes=1)
    job = clusters.fit(estimator, wait=False, job_name="job-1")
    make.await_ready(1, job)
    onlooker = clusters.Caller('TensorFlow.attach("job-1").latest_training_job.wait()', estimator, tmp_path)
    clusters.until(lambda: "deaf" in onlooker.output.read_text())  # what wait() shows
    onlooker.process.send_signal(signal.SIGINT)
    assert onlooker.wait() == -signal.SIGINT
    assert job.status == "InProgress"
    assert len(clusters.marked(job.name)) >= 3


def test_attach_gives_the_estimator_of_a_job(make: clusters.Make) -> None:
    job = make.run("print('x')", hosts=2, processes=1, hyperparameters={"epochs": 3, "name": "a b"})
    estimator = TensorFlow.attach(job.name)
    assert estimator.latest_training_job is not None
    assert estimator.latest_training_job.name == job.name
    assert estimator.instance_count == 2
    assert estimator.hyperparameters()["epochs"] == "3"
    assert estimator.hyperparameters()["name"] == '"a b"'


@shapes.every
def test_sigterm_to_the_supervisor_stops_the_job_with_time_to_save(shape: shapes.Shape, make: clusters.Make) -> None:
    """As when a machine shuts down."""
    job = make.start(SAVING, ready=shape.size, environment=saving(*[0.2] * (shape.size - 1), 1.0), **shape.settings)
    snapshot = clusters.Snapshot(job)
    snapshot.supervisor.kill(signal.SIGTERM)
    assert clusters.await_terminal(job) == "Stopped"
    assert [clusters.printed(job, rank) for rank in range(shape.size)] == [["saved"]] * shape.size
    assert snapshot.left() == []


@pytest.mark.parametrize(
    ("shape", "kind"),
    [*((shapes.MPI_, kind) for kind in ("mpirun", "orted")), *((shape, "toolkit") for shape in shapes.ALL)],
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
