"""Elastic jobs whose provider knows which hosts there are, and which of them are about to be taken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import clusters
import fleet as fleets
import places
import pytest
from elastic_jobs import MEETING, check, sizes, until_size

from estimators import ElasticHorovod, TrainingJob
from estimators.job.errors import ConfigurationError

pytestmark = [
    pytest.mark.horovod,
    pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2"),
]

#: Tells where it is, then keeps its place.
THERE = "import socket\nprint('at ' + socket.gethostname(), flush=True)\n" + MEETING
OPTIONS = {"max_hosts": 3, "workers": 1, "min_hosts": 1, "warm": False, "cooldown": (0.2, 1.0)}


def told(job: TrainingJob, text: str) -> None:
    clusters.until(lambda: text in clusters.all_text(job), check=lambda: check(job))


def test_hosts_are_where_the_provider_says_and_leave_before_they_are_taken(
    fleet: fleets.Fleet, tmp_path: Path, home: Path
) -> None:
    first, second, third = (machine.address for machine in fleet.machines[:3])
    board = tmp_path / "board.json"

    def write(machines: dict[str, dict[str, float]]) -> None:
        (tmp_path / "new").write_text(json.dumps(machines))
        os.replace(tmp_path / "new", board)

    make = places.on_fleet(fleet, tmp_path, home, board=str(board))
    write({third: {"slots": 1}})
    job = make.start(THERE, hosts=2, distribution=ElasticHorovod(**OPTIONS))
    until_size(job, 1)
    told(job, "at machine-12")
    told(job, "the board lists 1 of the 2 initial hosts, so algo-2 leaves")
    with pytest.raises(ConfigurationError, match="the board decides which hosts the job has"):
        job.add_hosts(1)
    write({third: {"slots": 1}, first: {}})
    until_size(job, 1, 2)
    told(job, "at machine-10")
    # One is wanted back: it leaves, and nothing comes in its place, though it is on the board until it is taken.
    write({third: {"slots": 1, "wanted_in": 60}, first: {}})
    until_size(job, 1, 2, 1)
    told(job, "algo-1 has a preemption notice: the host leaves within 60 s")
    clusters.until(lambda: job.hosts == ["algo-3"], check=lambda: check(job))
    write({first: {}, second: {}})
    until_size(job, 1, 2, 1, 2)
    told(job, "at machine-11")
    board.unlink()
    told(job, "the board: [Errno 2] No such file or directory")
    assert sizes(job) == [1, 2, 1, 2]
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed", json.dumps(job.describe(), default=str)


def test_a_list_of_machines_bounds_an_elastic_job_and_may_grow(fleet: fleets.Fleet, tmp_path: Path, home: Path) -> None:
    addresses = [machine.address for machine in fleet.machines[:2]]
    listed = tmp_path / "hosts"
    listed.write_text(f"{addresses[0]}\n")
    make = places.on_ssh(fleet, tmp_path, home, hosts=None, host_file=str(listed))
    job = make.start(THERE, hosts=1, distribution=ElasticHorovod(**OPTIONS))
    until_size(job, 1)
    with pytest.raises(ConfigurationError, match=rf"the fleet has 1 place \({addresses[0]}\)"):
        job.add_hosts(1)
    listed.write_text("".join(f"{address}\n" for address in addresses))

    def added() -> bool:
        try:
            return job.add_hosts(1) == ["algo-2"]
        except ConfigurationError:
            return False

    clusters.until(added, check=lambda: check(job))
    until_size(job, 1, 2)
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed", json.dumps(job.describe(), default=str)
