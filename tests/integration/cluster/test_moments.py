"""Interruptions at the moments that matter most: each is held, and not waited for."""

from __future__ import annotations

import os
import signal
import tarfile
from pathlib import Path

import clusters
import pytest
import shapes
from holding import Held, held

from estimators import FailurePolicy, TrainingJob
from estimators.records.record import job_names

WAITS = """
import signal
import aid
aid.mark(f"ready-{aid.RANK}")
signal.pause()
"""

#: Every moment of a start, from the supervisor's to the ranks'.
STARTING = ("supervisor.before_hosts", "toolkit.before_ready", "rank.before_start", "supervisor.before_process_started")

FEW = pytest.mark.parametrize("shape", [shapes.NONE, shapes.MPI_, shapes.COLLECTIVE, shapes.SERVERS], ids=str)


def kill_supervisor(point: Held, job: TrainingJob) -> clusters.Snapshot:
    """Kill the job's supervisor while something of the job stands at a point; what there was."""
    point.await_there()
    snapshot = clusters.Snapshot(job)
    snapshot.supervisor.kill()
    return snapshot


def lost(job: TrainingJob, snapshot: clusters.Snapshot) -> None:
    """Nothing is left, and every reader says what happened."""
    snapshot.await_end()
    clusters.until(lambda: not clusters.marked(job.name))
    assert clusters.await_terminal(job) == "Failed"
    assert "supervisor lost" in job.describe()["FailureReason"]
    snapshot.await_tidy()


@pytest.mark.parametrize("moment", STARTING)
@FEW
def test_stop_at_every_moment_of_the_start(moment: str, shape: shapes.Shape, make: clusters.Make) -> None:
    """None of them hangs or fails the job."""
    with held(moment) as point:
        job = make.start(WAITS, **shape.settings)
        if point.await_there() == (supervisor := clusters.supervisor(job)).pid:
            supervisor.kill(signal.SIGTERM)  # it is heard when it goes on
        else:
            job.stop()
            clusters.until(lambda: job.status == "Stopping")
    assert clusters.await_terminal(job) == "Stopped", job.describe().get("FailureReason")
    assert clusters.marked(job.name) == []


@pytest.mark.parametrize("moment", STARTING)
@FEW
def test_no_orphan_of_a_supervisor_that_is_killed_during_the_start(
    moment: str, shape: shapes.Shape, make: clusters.Make
) -> None:
    with held(moment) as point:
        job = make.start(WAITS, **shape.settings)
        snapshot = kill_supervisor(point, job)
    lost(job, snapshot)


@pytest.mark.parametrize("shape", [shapes.NONE, shapes.MPI_], ids=str)
def test_a_rank_that_is_killed_before_it_runs_is_named(shape: shapes.Shape, make: clusters.Make) -> None:
    with held("rank.before_start") as point:
        job = make.start(WAITS, **shape.settings)
        os.kill(point.await_there(lambda one: one.host == "algo-2"), signal.SIGKILL)
    assert clusters.await_terminal(job) == "Failed"
    assert job.describe()["FailureReason"].startswith("algo-2, rank "), job.describe()["FailureReason"]
    clusters.until(lambda: not clusters.marked(job.name))


#: What the first attempt does; others print and end.
FIRST = {"ends well": "pass", "raises": "raise ValueError('first')", "is stopped": "aid.wait_for('never')"}


@pytest.mark.parametrize("how", FIRST)
def test_a_supervisor_that_is_killed_before_it_has_written_the_end(how: str, make: clusters.Make) -> None:
    """Nobody knows how the job ended: it is not said to run on, and can be gone on with."""
    script = f"""
    import os
    import aid
    print("attempt", os.environ["FLEETFIT_ATTEMPT"], flush=True)
    aid.mark("ready-0")
    if os.environ["FLEETFIT_ATTEMPT"] == "0":
        {FIRST[how]}
    """
    with held("supervisor.before_commit") as point:
        job = make.start(script, ready=1)
        if how == "is stopped":
            job.stop()
        snapshot = kill_supervisor(point, job)
    lost(job, snapshot)
    again = job.resume(logs=False)
    assert again.status == "Completed"
    assert [line for line in clusters.printed(again) if line.startswith("attempt")] == ["attempt 0", "attempt 1"]


def test_a_stop_that_comes_when_the_job_has_completed_changes_nothing(make: clusters.Make) -> None:
    with held("supervisor.before_commit") as point:
        job = make.start("print('done')")
        os.kill(point.await_there(), signal.SIGTERM)  # it is heard when it goes on
        assert job.status == "InProgress"
    job.stop(wait=True)
    assert job.status == "Completed"


def test_a_caller_that_is_killed_before_it_has_started_the_supervisor(make: clusters.Make, tmp_path: Path) -> None:
    """The record is there, and nobody is behind it."""
    with held("launch.before_supervisor") as point:
        caller = clusters.Caller('estimator.fit(job_name="job-1")', make("print('done')"), tmp_path)
        assert point.await_there() == caller.process.pid
        caller.process.kill()
        caller.wait()
    assert job_names() == ["job-1"]
    job = TrainingJob.attach("job-1")
    clusters.until(lambda: job.status == "Failed")
    assert "supervisor lost" in job.describe()["FailureReason"]
    assert job.resume(logs=False).status == "Completed"
    assert clusters.printed(job) == ["done"]


#: Saves three checkpoints, and goes on from the newest.
SAVES = """
import os, sys
from container.checkpoint import Progress
from container.checkpoint.store import CheckpointStore, Contents

store = CheckpointStore(os.environ["SM_CHECKPOINT_DIR"])
store.lock()
newest = store.read_newest()
begin = newest.manifest.progress.step if newest is not None else 0
print("begins at", begin, "with", sorted(os.listdir(store.directory)), flush=True)
for step in range(begin + 1, 4):
    store.write(Contents(progress=Progress(step=step), files={"state": [memoryview(bytes([step]) * 1000)]}))
"""


def test_a_checkpoint_that_was_not_committed_is_none_and_the_one_before_is_whole(make: clusters.Make) -> None:
    """The rank is killed when all of the second is written but its name."""
    with held("checkpoint.before_commit") as point:
        job = clusters.fit(
            make(SAVES, max_retry_attempts=1, options={"failure_policy": FailurePolicy(cooldown=(0, 0))}), wait=False
        )
        point.let_go(point.await_there())
        second = point.await_there()
        saved = sorted(path.name for path in job.record.checkpoints_dir.iterdir())
        assert [name.partition("-")[0] for name in saved if name != ".lock"] == [".staging", "checkpoint"], saved
        os.kill(second, signal.SIGKILL)
    assert clusters.await_terminal(job) == "Completed"
    first, again = (line for line in clusters.printed(job) if line.startswith("begins"))
    assert first == "begins at 0 with ['.lock']"
    assert again == "begins at 1 with ['.lock', 'checkpoint-00000001-step-1']"
    names = [path.name for path in job.record.checkpoints_dir.iterdir() if path.name != ".lock"]
    assert sorted(names) == [f"checkpoint-0000000{step}-step-{step}" for step in (1, 2, 3)]


MODEL = "import os\nopen(os.path.join(os.environ['SM_MODEL_DIR'], 'weights'), 'w').write('all of them')"


@pytest.mark.parametrize("victim", ["supervisor", "agent"])
def test_a_model_appears_whole_or_not_at_all(victim: str, make: clusters.Make) -> None:
    with held("agent.before_commit") as point:
        job = make.start(MODEL)
        agent = point.await_there()
        snapshot = clusters.Snapshot(job)
        if victim == "agent":
            os.kill(agent, signal.SIGKILL)
        else:
            snapshot.supervisor.kill()
            snapshot.await_end()
    assert clusters.await_terminal(job) == "Failed"
    clusters.until(lambda: clusters.process(agent) is None)
    assert job.model_data is None
    again = job.resume(logs=False)
    assert again.status == "Completed" and again.model_data is not None
    archive = Path(again.model_data)
    assert [path.name for path in archive.parent.iterdir()] == ["model.tar.gz"]
    with tarfile.open(archive) as opened:
        assert opened.getnames() == ["weights"]


@pytest.mark.parametrize("moment", STARTING)
def test_a_supervisor_that_is_killed_as_a_further_attempt_begins(moment: str, make: clusters.Make) -> None:
    """An attempt that was announced is not made again under its number."""
    script = """
    import os, sys
    import aid
    attempt = int(os.environ["FLEETFIT_ATTEMPT"])
    print("attempt", attempt, flush=True)
    sys.exit(attempt == 0)
    """
    with held(moment) as point:
        job = make.start(script, max_retry_attempts=2, options={"failure_policy": FailurePolicy(cooldown=(0, 0))})
        point.let_go(point.await_there())
        snapshot = kill_supervisor(point, job)
    lost(job, snapshot)
    again = job.resume(logs=False)
    assert again.status == "Completed"
    printed = clusters.printed(again)
    assert (printed[0], printed[-1]) == ("attempt 0", "attempt 2"), printed


def test_a_job_that_has_just_failed_is_resumed_at_once(make: clusters.Make) -> None:
    """Its supervisor, which is busy with what is left to note of it, is not waited for."""
    with held("supervisor.lingers") as point:
        job = make.start("import os, sys; sys.exit(0 if os.environ['FLEETFIT_ATTEMPT'] == '1' else 3)")
        clusters.await_terminal(job)
        assert job.status == "Failed"
        first = point.await_there()
        job.resume(wait=False)
        assert point.await_there() != first
        clusters.await_terminal(job)
        assert job.status == "Completed"
