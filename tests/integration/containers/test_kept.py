"""Containers that are kept for the next job."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import clusters
import psutil
import pytest
from containing import WAITING

from estimators import TrainingJobError
from estimators.backends.docker import kept
from estimators.backends.docker.engine import Engine
from estimators.client import launch

pytestmark = pytest.mark.timeout(1500)  # the first one has the images made

SCRIPT = """
import os, socket
import aid
started = open("/proc/1/stat").read().rpartition(")")[2].split()[19]
aid.report(name=socket.gethostname(), base=os.path.realpath("/opt/ml"), boot=started,
           data=sorted(os.listdir("/opt/ml/input/data/training")), secrets=os.listdir("/run/fleetfit"))
open("/opt/ml/model/weights", "w").close()
open(os.path.join(os.environ["SM_CHECKPOINT_DIR"], f"saved-{aid.HOST}"), "w").close()
"""


def pools(home: Path) -> list[Path]:
    return sorted((home / "warm").glob("*"))


@pytest.mark.leaves("processes")
def test_jobs_run_in_the_same_containers_one_after_another(
    make: clusters.Make, engine: Engine, home: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").touch()
    first, second = (
        clusters.fit(make(SCRIPT, hosts=2, keep_alive_period_in_seconds=60), str(data), logs=False) for _ in range(2)
    )
    said = [clusters.reports(job) for job in (first, second)]
    for job, reports in zip((first, second), said, strict=True):
        assert {rank: one["name"] for rank, one in reports.items()} == {0: "algo-1", 1: "algo-2"}
        assert all(one["data"] == ["a"] and one["base"].startswith(str(job.record.path)) for one in reports.values())
        assert all(one["secrets"] == ["secrets.json"] for one in reports.values())
        assert sorted(path.name for path in Path(job.checkpoints).iterdir()) == ["saved-algo-1", "saved-algo-2"]
        assert job.model_data is not None
    assert [said[0][rank]["boot"] for rank in (0, 1)] == [said[1][rank]["boot"] for rank in (0, 1)]
    [pool] = pools(home)
    assert not list(pool.glob("secrets/*/*")), "nothing of a job's secrets stays"
    # Others are made where the job wants something else.
    third = clusters.fit(make(SCRIPT, hosts=1, keep_alive_period_in_seconds=1), str(data), logs=False)
    assert clusters.reports(third)[0]["boot"] != said[0][0]["boot"]
    clusters.until(lambda: pools(home) == [pool])  # its second is over
    [containers, networks] = engine.leftovers({"fleetfit.job": "warm"})
    found = {item["Labels"]["fleetfit.pool"] for item in (*containers, *networks)}
    assert {path for path in found if path.startswith(str(home))} == {str(pool)}
    engine.remove_all({"fleetfit.pool": str(pool)})


def test_a_job_that_is_stopped_or_fails_leaves_a_pool_and_a_killed_supervisor_does_not(
    make: clusters.Make, engine: Engine, home: Path
) -> None:
    job = make.start(WAITING, hosts=2, ready=2, keep_alive_period_in_seconds=30)
    job.stop()
    assert clusters.await_terminal(job) == "Stopped"
    make.marked("saved-algo-2")
    [pool] = pools(home)
    with pytest.raises(TrainingJobError, match="ValueError: no data"):
        make.run("raise ValueError('no data')", hosts=2, keep_alive_period_in_seconds=30)
    assert pools(home) == [pool]
    make.clear()
    job = make.start(WAITING, hosts=2, ready=2, keep_alive_period_in_seconds=30)
    assert pools(home) == [pool]
    supervisor = clusters.supervisor(job)
    clusters.until(lambda: len(launch._leftovers(pool)) == 2)  # the first job's waits, and the third job's is there
    [remover] = [pid for pid in launch._leftovers(pool) if psutil.Process(pid).ppid() == supervisor.pid]
    os.kill(remover, signal.SIGKILL)
    clusters.until(lambda: remover not in (found := launch._leftovers(pool)) and len(found) == 2)
    supervisor.kill()
    clusters.until(lambda: not pools(home) and not any(engine.leftovers({"fleetfit.pool": str(pool)})))


def test_a_kept_container_that_is_killed_is_the_reason(make: clusters.Make, engine: Engine, home: Path) -> None:
    job = make.start(WAITING, hosts=2, ready=2, keep_alive_period_in_seconds=60)
    [pool] = pools(home)
    engine.kill(kept.ContainerPool(pool).container("algo-2"), "SIGKILL")
    assert clusters.await_terminal(job) == "Failed"
    assert "algo-2: the container was killed from outside (SIGKILL)" in job.describe()["FailureReason"]
    clusters.until(lambda: not pools(home) and not any(engine.leftovers({"fleetfit.pool": str(pool)})))


@pytest.mark.leaves("processes")
def test_what_a_job_has_imported_is_there_for_the_next_one(make: clusters.Make, engine: Engine, home: Path) -> None:
    script = "import numpy\nimport aid, os\naid.report(left=os.environ.get('LEFT'))\nos.environ['LEFT'] = '1'\n"
    fork = {"FLEETFIT_FORK": "1"}
    jobs = [clusters.fit(make(script, environment=fork, keep_alive_period_in_seconds=60), logs=False) for _ in range(2)]
    told = [[event.data for event in job.record.events("importer")] for job in jobs]
    assert [data["seconds"] > 0.0 for (data,) in told] == [True, False]
    assert [clusters.reports(job)[0]["left"] for job in jobs] == [None, None]
    [pool] = pools(home)
    engine.remove_all({"fleetfit.pool": str(pool)})
