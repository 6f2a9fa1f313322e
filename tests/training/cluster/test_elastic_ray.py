"""Elastic jobs on a Ray cluster, whose nodes come and go."""

from __future__ import annotations

import json
from pathlib import Path

import clusters
import places
import pytest
import ray_cluster as rays
from elastic_jobs import MEETING, until_size

from estimators import ElasticHorovod

pytestmark = pytest.mark.horovod


@pytest.fixture
def make(ray_cluster: rays.Cluster, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs run on the cluster."""
    return places.on_ray(ray_cluster, tmp_path, home)


def test_hosts_are_the_nodes_that_ray_has(make: clusters.Make, ray_cluster: rays.Cluster) -> None:
    """The cluster begins with three nodes, the head's among them."""
    strategy = ElasticHorovod(max_hosts=4, min_hosts=1, warm=False, cooldown=(0.2, 1.0))
    job = make.start(MEETING, hosts=3, distribution=strategy)
    until_size(job, 3)
    # A node that comes is asked for a host.
    added = ray_cluster.add()
    until_size(job, 3, 4)
    # One that is lost is left out at once, long before Ray knows.
    ray_cluster.kill(added)
    until_size(job, 3, 4, 3)
    # One that Ray drains has its host leave before it goes.
    drained = ray_cluster.nodes[0]
    ray_cluster.drain(drained, 20)
    until_size(job, 3, 4, 3, 2)
    told = [event.data for event in job.record.events() if event.kind == "notice"]
    assert len(told) == 1 and 10 < told[0]["seconds"] < 20
    # A worker that is killed stays where it was.
    clusters.until(lambda: len(job.hosts) == 2)
    next(one for one in clusters.Snapshot(job).members if one.kind == "rank" and one.host in job.hosts).kill()
    until_size(job, 3, 4, 3, 2, 1, 2)
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed", json.dumps(job.describe(), default=str)
    assert not any(event.data["name"] == "algo-5" for event in job.record.events() if event.kind == "host_added")
