"""Jobs that start again: after failures, interruptions, and the loss of their supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import clusters
import pytest
import sharing

from estimators import MPI, CollectiveAllReduce, ConfigurationError, FailurePolicy, TensorFlow, TrainingJob
from estimators.faults import Interrupt, Kill, RemoveHost

#: Counts to ``END``, a step each 20 ms, from where the folder of checkpoints says; at the steps ``HOLD``, one of each
#: attempt from the first, it stays. Rank 0 leads.
COUNT = """
import json, os, signal, sys, time
import aid

attempt = int(os.environ["FLEETFIT_ATTEMPT"])
holds = os.environ.get("HOLD", "").split()
hold = int(holds[attempt]) if attempt < len(holds) else None
place = os.path.join(os.environ["SM_CHECKPOINT_DIR"], "step")
led = os.path.join(aid.MARKS, f"step-{attempt}")
start = int(open(place).read()) if os.path.exists(place) else 0
old = os.path.exists(os.path.join(os.environ["SM_MODEL_DIR"], "old"))
open(os.path.join(os.environ["SM_MODEL_DIR"], "old"), "w").close()
aid.report(attempt=attempt, start=start, hosts=json.loads(os.environ["SM_HOSTS"]), old=old, host=aid.HOST)

def saved(*_):
    aid.mark(f"told-{attempt}-{aid.HOST}", time.time())
    sys.exit(0)

if os.environ.get("SAVES"):
    signal.signal(signal.SIGTERM, saved)
aid.mark(f"ready-{attempt}-{aid.HOST}")
for host in json.loads(os.environ["SM_HOSTS"]):
    aid.wait_for(f"ready-{attempt}-{host}")
for step in range(start + 1, int(os.environ.get("END", 30)) + 1):
    time.sleep(0.02)
    if aid.RANK == 0:
        with open(place + ".part", "w") as file:
            file.write(str(step))
        os.rename(place + ".part", place)
        aid.mark(f"step-{attempt}", step)
    while not os.path.exists(led) or int(open(led).read() or 0) < step:  # other hosts may not see rank 0's folder
        time.sleep(0.005)
    print("step", step, flush=True)
    while step == hold:
        time.sleep(0.02)
"""


def starts(job: TrainingJob) -> list[dict[str, Any]]:
    """What the ranks reported when they started, by attempt and host."""
    import json

    found = [json.loads(line.text[7:]) for line in job.log_lines() if line.text.startswith("report ")]
    return sorted(found, key=lambda values: (values["attempt"], values["host"]))


def steps(job: TrainingJob) -> list[str]:
    """The secondary statuses, in their order."""
    return [entry["Status"] for entry in job.describe()["SecondaryStatusTransitions"]]


def told(job: TrainingJob, *kinds: str) -> list[tuple[str, int]]:
    """Events of these kinds and the attempts in which they came."""
    return [(event.kind, event.attempt) for event in job.record.events() if event.kind in kinds]


@pytest.mark.landing
def test_a_gang_starts_again_after_a_kill_and_on_fewer_hosts_after_the_loss_of_one(make: clusters.Make) -> None:
    job = clusters.fit(
        make(
            COUNT,
            hosts=2,
            distribution=MPI(processes_per_host=1),
            max_retry_attempts=3,
            environment={"HOLD": "8 12 18"},
            options={"failure_policy": FailurePolicy(min_hosts=1, cooldown=(0, 0))},
        ),
        logs=False,
        faults=[
            Kill(rank=1, at_line="step 8$"),
            RemoveHost("algo-2", at_line="step 12$", attempt=1, return_after_s=0),
            RemoveHost("algo-1", at_line="step 18$", attempt=2),
        ],
    )
    assert job.status == "Completed"
    found = starts(job)
    assert [(one["attempt"], one["hosts"]) for one in found] == [
        (0, ["algo-1", "algo-2"]),
        (0, ["algo-1", "algo-2"]),
        (1, ["algo-1", "algo-2"]),
        (1, ["algo-1", "algo-2"]),
        (2, ["algo-1", "algo-2"]),
        (2, ["algo-1", "algo-2"]),
        (3, ["algo-2"]),
    ]
    # They went on from the checkpoint; nothing else of /opt/ml is kept, as on SageMaker.
    assert [found[number]["start"] for number in (2, 4)] == [8, 12]
    # A machine that is gone has what it saved last with it.
    assert found[6]["start"] == 18 or (make.has_machines and 12 <= found[6]["start"] < 18)
    assert not any(one["old"] for one in found)
    assert steps(job) == ["Starting", "Training", *["Restarting", "Training"] * 3, "Uploading", "Completed"]
    assert told(job, "fault", "restart", "removed") == [
        ("fault", 0), ("restart", 0), ("fault", 1), ("removed", 1), ("restart", 1), ("fault", 2), ("removed", 2),
        ("restart", 2),
    ]  # fmt: skip
    causes = [values["failure"]["cause"] for values in job.describe()["Fleetfit"]["attempts"]]
    assert causes == ["process", "host_lost", "host_lost"]
    shown = clusters.all_text(job)
    assert "fault: Kill(at_line='step 8$', rank=1)" in shown and "algo-1 is gone" in shown
    assert "attempt 0 is over (algo-2, rank 1: was killed by SIGKILL). The next attempt begins" in shown
    for attempt, host in ((0, "algo-1"), (1, "algo-2"), (3, "algo-2")):
        assert any(job.record.log_dir(host, attempt).glob("rank-*.log"))
    assert (job.record.checkpoints_dir / "step").read_text() == "30"


def test_spot_hosts_are_interrupted_and_come_back_and_time_is_billed_as_on_sagemaker(make: clusters.Make) -> None:
    job = clusters.fit(
        make(
            COUNT,
            hosts=2,
            distribution=CollectiveAllReduce(),
            use_spot_instances=True,
            max_run=600,
            max_wait=900,
            environment={"HOLD": "3", "SAVES": "1"},
        ),
        logs=False,
        faults=Interrupt("algo-2", 2, at_line="step 3$", return_after_s=4),
    )
    assert job.status == "Completed"
    # Both hosts had the notice at once, and the interrupted one its time.
    notices = [float(make.marked(f"told-0-{host}")) for host in ("algo-1", "algo-2")]
    assert abs(notices[0] - notices[1]) < 1
    assert [(one["attempt"], len(one["hosts"])) for one in starts(job)] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    happened = told(job, "interrupted", "restart", "returned")
    assert happened[0] == ("interrupted", 0)
    # On a busy machine the attempt may still be ending when the host comes back.
    assert sorted(happened[1:]) == [("restart", 0), ("returned", 0)]
    assert steps(job) == [
        "Starting", "Training", "Interrupted", "Restarting", "Training", "Uploading", "Completed",
    ]  # fmt: skip
    answer = job.describe()
    (ending,) = answer["Fleetfit"]["attempts"]
    assert (ending["kind"], ending["taken"], ending["failure"]) == ("preemption", ["algo-2"], None)
    waited = next(one for one in answer["SecondaryStatusTransitions"] if one["Status"] == "Interrupted")
    assert waited["EndTime"] - waited["StartTime"] > 0.5
    training, billable = answer["TrainingTimeInSeconds"], answer["BillableTimeInSeconds"]
    assert 1 <= billable < training  # without the wait
    result = job.result()
    assert (result.training_s, result.billable_s) == (training, billable)
    assert result.spot_savings == pytest.approx((1 - billable / training) * 100)


def test_a_job_that_lost_its_supervisor_is_resumed(make: clusters.Make, home: Path) -> None:
    job = make.start(COUNT, environment={"HOLD": "5"})
    clusters.until(lambda: "step 5" in clusters.printed(job))
    with pytest.raises(ConfigurationError, match="only a job that failed, was stopped or lost its supervisor"):
        job.resume()
    # From a machine a checkpoint takes a moment to come.
    saved = job.record.checkpoints_dir / "step"
    clusters.until(lambda: saved.is_file() and saved.read_text() == "5")
    snapshot = clusters.Snapshot(job)
    snapshot.supervisor.kill()
    clusters.await_terminal(job)
    assert job.status == "Failed" and job.failure is not None
    assert f"`fleetfit resume {job.name}`" in " ".join(job.failure.hints)
    again = job.resume(logs=False)  # at once: what the lost one has left is waited for
    assert again.name == job.name and job.status == "Completed"
    assert not snapshot.left() and not snapshot.files_left()
    assert [(one["attempt"], one["start"]) for one in starts(job)] == [(0, 0), (1, 5)]
    answer = job.describe()
    assert answer["Fleetfit"]["attempt"] == 1 and "FailureReason" not in answer
    assert [values["failure"]["message"] for values in answer["Fleetfit"]["attempts"]] == ["the supervisor was lost."]
    with pytest.raises(ConfigurationError, match="has completed"):
        job.resume()


def test_the_code_of_a_job_that_is_over_is_kept_once(make: clusters.Make) -> None:
    """And is each host's own again in an attempt that follows."""
    sharing.check_code_is_kept_once(make)


@pytest.mark.tensorflow
@pytest.mark.horovod
def test_a_training_that_is_killed_and_interrupted_makes_all_of_its_steps(
    tmp_path: Path, home: Path, prepared_digits: Path, warm: None
) -> None:
    """The digits example: a rank dies at a step, then a host is interrupted at another; nothing is lost by a notice."""
    epochs, steps_per_epoch = 4, 23  # many steps after the last fault: a notice takes its time on a busy machine
    root = Path(__file__).resolve().parents[3]
    estimator = TensorFlow(
        entry_point="train.py",
        source_dir=str(root / "entrypoints"),
        instance_count=2,
        distribution=MPI(processes_per_host=1),
        hyperparameters={"epochs": epochs, "batch-size": 64},
        max_retry_attempts=1,
        model_dir=False,
    )
    data = prepared_digits
    job = clusters.fit(
        estimator,
        {name: str(data / name) for name in ("train", "validation")},
        logs=False,
        faults=[Kill(rank=1, at_step=30), Interrupt("algo-2", 15, at_step=50, attempt=1)],
    )
    assert job.status == "Completed"
    saved: dict[int, list[int]] = {}
    for event in job.record.events("checkpoint"):
        if event.data["action"] in ("saved", "restored"):
            saved.setdefault(event.attempt, []).append(event.data["step"])
    assert told(job, "fault", "interrupted", "preempted", "restart") == [
        ("fault", 0), ("restart", 0), ("fault", 1), ("interrupted", 1), ("preempted", 1), ("restart", 1),
    ]  # fmt: skip
    assert max(saved[0]) <= 30 and saved[1][0] <= 30  # what a kill leaves
    just_in_time = saved[1][-1]
    assert 50 <= just_in_time < epochs * steps_per_epoch and saved[2][0] == just_in_time
    assert saved[2][-1] == epochs * steps_per_epoch
    values = job.metrics().query("name == 'val_accuracy'").value
    assert values.iloc[-1] > 0.7
