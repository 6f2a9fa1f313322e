"""A job's supervisor as a job of a Ray cluster: it needs the caller no more, and is seen from here and elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest
import ray_cluster as rays
from dispatched import LOSS, STEPS, follower

from estimators import Estimator
from estimators.job.request import JobOptions


@pytest.fixture(scope="module")
def head() -> Iterator[rays.Cluster]:
    """A cluster of two nodes, whose head has the Jobs API."""
    cluster = rays.Cluster(1, jobs_api=True)
    yield cluster
    cluster.close()


@pytest.fixture
def there(head: rays.Cluster, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the records there."""
    monkeypatch.setattr(clusters, "on_machines", head.pids)
    yield tmp_path / "there"
    clusters.kill_everything_of(tmp_path / "there")
    clusters.kill_everything_of(home)
    clusters.until(lambda: not head.pids())


@pytest.fixture
def make(head: rays.Cluster, there: Path, tmp_path: Path) -> clusters.Make:
    """Makes estimators of jobs that run on the cluster as a whole."""
    made = clusters.Make(tmp_path, instance_type="ray")
    options = {"address": head.jobs_address, "python": sys.executable, "home": str(there)}
    made._options = {"dispatcher": "ray", "dispatcher_options": options}
    return made


def attached(name: str, **reached: Any) -> Any:
    """The job, as another process finds it."""
    return Estimator.attach(name, **reached).latest_training_job


def jobs(head: rays.Cluster) -> Any:
    """Ray's client for jobs."""
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(head.jobs_address)


def of_ray(kind: str, name: str) -> clusters.Process:
    """The process of a job's supervisor there: Ray's own for its job, or ours."""
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    for one in filter(None, map(clusters.process, pids)):
        words = " ".join(one.argv)
        if kind == "supervisor" and "estimators.supervisor.main" in words and f"/there/jobs/{name}" in words:
            return one
        if kind == "job" and "estimators.client.ray_job run" in words:
            with contextlib.suppress(OSError):
                if f'"job_submission_id": "{name}"'.encode() in Path(f"/proc/{one.pid}/environ").read_bytes():
                    return clusters.process(
                        int(Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[1])
                    )
    raise AssertionError(f"there is no {kind} of {name}")


@pytest.mark.leaves("folders")
def test_a_job_goes_on_without_its_caller_and_all_of_it_comes_here(
    make: clusters.Make, head: rays.Cluster, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part-1").write_text("from here")
    job = make.start(STEPS, hosts=2, ready=2, inputs=str(tmp_path / "data"), metric_definitions=LOSS)
    assert job.dispatcher == "ray" and (there / "jobs" / job.name).is_dir()
    clusters.until(lambda: len(list(job.log_lines())) >= 6)
    os.kill(follower(job), signal.SIGKILL)
    clusters.until(lambda: not job.record.is_supervised())
    assert job.status == "InProgress" and "no process follows this job" in job.warnings[-1]
    reached = JobOptions.from_dict(job.record.read_options()).dispatcher_options
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("FLEETFIT_HOME", str(tmp_path / "elsewhere"))
        with pytest.raises(Exception, match="there is no training job 'no-such-job'"):
            attached("no-such-job", dispatcher="ray", dispatcher_options=reached)
        other = attached(job.name, dispatcher="ray", dispatcher_options=reached)
        make.mark("go")
        other.wait(logs=False)
        assert other.status == "Completed"
    again = attached(job.name)
    again.wait(logs=False)
    for seen in (other, again):
        said = sorted(line.text for line in seen.log_lines() if line.text.startswith("rank"))
        assert said == ["rank 0 says hello", "rank 1 says hello"]  # also what was here already
        assert list(seen.metrics()["value"]) == [0.5, 0.5]
        assert Path(seen.model_data).is_file() and Path(seen.model_data).is_relative_to(seen.record.path)
        assert {report["data"] for report in clusters.reports(seen).values()} == {"from here"}
    client = jobs(head)
    assert "says hello" in client.get_job_logs(job.name)
    clusters.until(lambda: client.get_job_status(job.name).value == "SUCCEEDED")
    # Who told of it is forgotten, and has left nothing of what it told.
    clusters.until(lambda: [info.submission_id for info in client.list_jobs()] == [job.name])
    assert all(file.stat().st_size < 2048 for file in head.folder.rglob("job-driver-*-follow-*.log"))
    clusters.kill_everything_of(tmp_path / "elsewhere")


def test_a_job_is_stopped_from_here_and_by_ray(make: clusters.Make, head: rays.Cluster) -> None:
    here = make.start(STEPS, ready=1)
    here.stop(wait=True, grace=60)
    make.clear()
    there = make.start(STEPS, ready=1)
    client = jobs(head)
    client.stop_job(there.name)
    clusters.await_terminal(there)
    for job in (here, there):
        assert job.status == "Stopped"
        assert [line.text for line in job.log_lines() if line.text == "saving"] == ["saving"]
    assert "Ray was asked to stop the job" in str(there.describe()["SecondaryStatusTransitions"])
    clusters.until(lambda: client.get_job_status(there.name).value == "STOPPED")


@pytest.mark.parametrize("victim", ["job", pytest.param("supervisor", marks=pytest.mark.soak)])
def test_nothing_is_left_when_a_supervisor_is_killed(victim: str, make: clusters.Make, head: rays.Cluster) -> None:
    job = make.start(STEPS, hosts=2, ready=2)
    assert len(head.pids()) >= 4
    of_ray(victim, job.name).kill()
    clusters.until(lambda: not head.pids())
    clusters.await_terminal(job)
    assert job.status == "Failed" or "process that waited for the job has ended" in str(job.describe())


def test_a_cluster_that_does_not_take_the_job_says_why(make: clusters.Make, there: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    options = make._options["dispatcher_options"]
    for change, said in (
        ({"address": nobody}, f"Ray's Jobs API does not answer at {nobody}: .*Connection refused"),
        ({"python": "no-such-python"}, "no-such-python: not found. Name an interpreter that exists there"),
    ):
        with pytest.raises(Exception, match=said):
            make.start("pass", options={**make._options, "dispatcher_options": {**options, **change}})
    (there / "jobs" / "taken").mkdir(parents=True)
    with pytest.raises(Exception, match=r"'taken'.* already"):  # which only the cluster sees
        make.start("pass", name="taken")
    assert not list(there.rglob("request.json"))
