"""Elastic jobs on spot instances: EC2 says who is there, and another one is asked for in place of each that goes."""

from __future__ import annotations

from pathlib import Path

import clusters
import ec2_machines
import fleet as fleets
import places
import pytest
from elastic_jobs import MEETING, check, until_size

from estimators import ElasticHorovod, TrainingJob

pytestmark = [
    pytest.mark.horovod,
    pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2"),
]


def first(job: TrainingJob, ec2: ec2_machines.Machines) -> str:
    """The instance that runs for longest."""
    clusters.until(lambda: len(ec2.server.running()) == 2, check=lambda: check(job))
    return next(one.id for one in ec2.server.instances if one.state == "running")


def test_instances_that_ec2_takes_are_replaced(ec2: ec2_machines.Machines, tmp_path: Path, home: Path) -> None:
    make = places.on_ec2(ec2, tmp_path, home)
    job = make.start(
        MEETING,
        hosts=2,
        use_spot_instances=True,
        distribution=ElasticHorovod(min_hosts=1, max_hosts=2, warm=False, cooldown=(0.5, 2.0)),
    )
    until_size(job, 2)
    ec2.interrupt(first(job, ec2))  # it leaves at the notice, and another one comes long before that is over
    until_size(job, 2, 1, 2)
    warned = next(one.id for one in ec2.server.instances if one.id in ec2.server.running()[-2:])
    ec2.recommend(warned)
    until_size(job, 2, 1, 2, 1, 2)
    lost = ec2.server.running()[-1]
    ec2.server.end(lost, "Server.SpotInstanceTermination")  # nobody was told
    until_size(job, 2, 1, 2, 1, 2, 1, 2)
    events = list(job.record.events())
    notices = [event.data["seconds"] for event in events if event.kind == "notice"]
    assert len(notices) == 2 and all(0 < seconds <= 120 for seconds in notices)
    assert len([event for event in events if event.kind == "host_lost"]) == 1
    assert ec2.server.count("CreateFleet") >= 4  # the first two together, and one for each that went
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed"
