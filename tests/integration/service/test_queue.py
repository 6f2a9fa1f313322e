"""Jobs of an endpoint wait for those of fit() in the same queue."""

from __future__ import annotations

import os
from pathlib import Path

import clusters
import pytest
import running
from serving import write_archive
from unserved import REQUEST
from waiting import until

from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.service.queue import EndpointQueue
from estimators.service.records import Jobs
from estimators.service.settings import EndpointFiles
from estimators.service.storage import Storage
from estimators.service.training import Training
from estimators.service.translation import Local


def test_jobs_of_an_endpoint_wait_for_those_of_fit_in_the_same_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("FLEETFIT_HOME", str(home))
    write_archive(home / "s3" / "bucket" / "sourcedir.tar.gz", {"train.py": "print('its turn has come')"})
    first = running.start(
        "import signal; print('it runs', flush=True); signal.pause()", tmp_path, name="first", attached=False,
        queue="default", needs={"cores": 1_000_000},
    )  # fmt: skip
    jobs = Jobs(home, "us-east-1")
    queue = EndpointQueue(jobs, 16, os.environ, lambda line: None)
    training = Training(jobs, queue, Storage(EndpointFiles(home), home / "s3"), Local(queue="default"))
    try:
        until(lambda: first.status == "InProgress" and first.secondary_status == "Training")
        training.create(REQUEST)
        record = JobRecord.open("job", home)
        until(lambda: record.read_status()["SecondaryStatus"] == "Pending")
        message = record.read_status()["SecondaryStatusTransitions"][-1]["StatusMessage"]
        assert message.startswith("Waiting in the queue 'default', 1 of 1")
        first.stop(wait=True, grace=0.0)
        until(lambda: statuses.is_terminal(record.read_status()))
        assert b"its turn has come" in record.log_file("algo-1", "rank 0").read_bytes()
    finally:
        queue.close()
        clusters.kill_everything_of(home)
