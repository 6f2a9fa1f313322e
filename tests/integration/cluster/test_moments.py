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


#: The moments of a start, with the strategies in which they differ.
STARTS = [
    (STARTING[0], shapes.NONE),
    (STARTING[1], shapes.MPI_),
    *((STARTING[2], shape) for shape in shapes.ALL),
    (STARTING[3], shapes.MPI_),
    (STARTING[3], shapes.SERVERS),
]


@pytest.mark.parametrize(
    ("moment", "shape", "how"),
    [
        *((moment, shape, how) for moment, shape in STARTS for how in ("stopped", "killed")),
        *((STARTING[2], shape, "loses a rank") for shape in (shapes.NONE, shapes.MPI_)),
    ],
    ids=str,
)
def test_a_start_that_is_interrupted_leaves_nothing_at_any_moment(
    moment: str, shape: shapes.Shape, how: str, make: clusters.Make
) -> None:
    """A stop neither hangs nor fails the job; a rank that is killed before it runs is named."""
    with held(moment) as point:
        job = make.start(WAITS, **shape.settings)
        if how == "killed":
            snapshot = kill_supervisor(point, job)
        elif how == "loses a rank":
            os.kill(point.await_there(lambda one: one.host == "algo-2"), signal.SIGKILL)
        elif point.await_there() == (supervisor := clusters.supervisor(job)).pid:
            supervisor.kill(signal.SIGTERM)  # it is heard when it goes on
        else:
            job.stop()
            clusters.until(lambda: job.status == "Stopping")
    if how == "killed":
        lost(job, snapshot)
        return
    reason = str(clusters.await_terminal(job)) + f": {job.describe().get('FailureReason')}"
    assert reason.startswith("Failed: algo-2, rank " if how == "loses a rank" else "Stopped"), reason
    clusters.until(lambda: not clusters.marked(job.name))


#: What the first attempt does, at which moment the supervisor is killed (of the second attempt, if there is one), and
#: the attempts that print something then; others print and end.
LAST = {
    "ends well": ("pass", "supervisor.before_commit", [0, 1]),
    "raises": ("raise ValueError('first')", "supervisor.before_commit", [0, 1]),
    "is stopped": ("aid.wait_for('never')", "supervisor.before_commit", [0, 1]),
    "is to be tried again": ("sys.exit(1)", "toolkit.before_ready", [0, 2]),
    "is being tried again": ("sys.exit(1)", "rank.before_start", [0, 2]),
}


@pytest.mark.parametrize("how", LAST)
def test_a_supervisor_that_is_killed_before_it_has_written_the_end(how: str, make: clusters.Make) -> None:
    """Nobody knows how the job ended: it is not said to run on, and can be gone on with.

    An attempt that was announced is not made again under its number.
    """
    act, moment, attempts = LAST[how]
    script = f"""
    import os, sys
    import aid
    print("attempt", os.environ["FLEETFIT_ATTEMPT"], flush=True)
    aid.mark("ready-0")
    if os.environ["FLEETFIT_ATTEMPT"] == "0":
        {act}
    """
    again = "again" in how
    policy = FailurePolicy(max_failures=2 if again else 0, cooldown=(0, 0))
    with held(moment) as point:
        job = make.start(script, options={"failure_policy": policy})
        if again:
            point.let_go(point.await_there())
        make.await_ready(1)
        if how == "is stopped":
            job.stop()
        snapshot = kill_supervisor(point, job)
    lost(job, snapshot)
    resumed = job.resume(logs=False)
    assert resumed.status == "Completed"
    lines = [line for line in clusters.printed(resumed) if line.startswith("attempt")]
    assert lines == [f"attempt {number}" for number in attempts]


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
from container.checkpoint.store import CheckpointStore, CheckpointContents

store = CheckpointStore(os.environ["SM_CHECKPOINT_DIR"])
store.lock()
newest = store.read_newest()
begin = newest.manifest.progress.step if newest is not None else 0
print("begins at", begin, "with", sorted(os.listdir(store.directory)), flush=True)
for step in range(begin + 1, 4):
    store.write(CheckpointContents(progress=Progress(step=step), files={"state": [memoryview(bytes([step]) * 1000)]}))
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
