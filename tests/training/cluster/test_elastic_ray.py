"""Elastic jobs on a Ray cluster, whose nodes come and go."""

from __future__ import annotations

import json
from pathlib import Path

import clusters
import horovod_torch
import places
import pytest
import ray_cluster as rays
from elastic_jobs import MEETING, check, sizes

from estimators import ElasticHorovod, PyTorch, TrainingJob

pytestmark = pytest.mark.horovod


@pytest.fixture
def make(ray_cluster: rays.Cluster, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs run on the cluster."""
    return places.on_ray(ray_cluster, tmp_path, home)


def until_size(job: TrainingJob, *expected: int) -> None:
    """Wait for memberships of other sizes; who leaves may be made the last one first, which is one of the same size."""

    def changes() -> list[int]:
        found = sizes(job)
        return [size for size, before in zip(found, [0, *found], strict=False) if size != before]

    clusters.until(lambda: changes() == list(expected), check=lambda: check(job))


def test_hosts_are_the_nodes_that_ray_has(make: clusters.Make, ray_cluster: rays.Cluster) -> None:
    """The cluster begins with four nodes, the head's among them."""
    strategy = ElasticHorovod(max_hosts=5, min_hosts=1, warm=False, cooldown=(0.2, 1.0))
    job = make.start(MEETING, hosts=4, distribution=strategy)
    until_size(job, 4)
    # A node that comes is asked for a host.
    added = ray_cluster.add()
    until_size(job, 4, 5)
    # One that is lost is left out at once, long before Ray knows.
    ray_cluster.kill(added)
    until_size(job, 4, 5, 4)
    # One that Ray drains has its host leave before it goes.
    drained = ray_cluster.nodes[0]
    ray_cluster.drain(drained, 20)
    until_size(job, 4, 5, 4, 3)
    told = [event.data for event in job.record.events() if event.kind == "notice"]
    assert len(told) == 1 and 10 < told[0]["seconds"] < 20
    # A worker that is killed stays where it was.
    clusters.until(lambda: len(job.hosts) == 3)
    ray_cluster.kill(drained)
    next(one for one in clusters.Snapshot(job).members if one.kind == "rank" and one.host in job.hosts).kill()
    until_size(job, 4, 5, 4, 3, 2, 3)
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed", json.dumps(job.describe(), default=str)
    assert not any(event.data["name"] == "algo-6" for event in job.record.events() if event.kind == "host_added")


def test_each_host_has_a_bundle_of_a_given_placement_group(
    ray_cluster: rays.Cluster, tmp_path: Path, home: Path
) -> None:
    """Hosts of an elastic job are requested one by one; a bundle that is taken is not given again."""
    group = rays.asks(
        ray_cluster.address,
        "from ray.util.placement_group import placement_group\n"
        "group = placement_group([{'CPU': 1}] * 2, lifetime='detached')\n"
        "assert group.wait(30)\n"
        "print(group.id.hex())",
    ).strip()
    make = places.on_ray(ray_cluster, tmp_path, home, placement_group=group)
    strategy = ElasticHorovod(max_hosts=2, min_hosts=1, warm=False, cooldown=(0.2, 1.0))
    job = make.start(MEETING, hosts=2, distribution=strategy)
    until_size(job, 2)
    next(one for one in clusters.Snapshot(job).members if one.kind == "toolkit").kill()
    until_size(job, 2, 1, 2)  # in the bundle that has become free
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed", job.describe().get("FailureReason")


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.skipif("torch" not in horovod_torch.BUILT, reason=horovod_torch.WITHOUT)
def test_an_articles_script_of_pytorch_goes_on_when_a_node_is_lost(
    make: clusters.Make, ray_cluster: rays.Cluster
) -> None:
    strategy = ElasticHorovod(max_hosts=3, min_hosts=1, cooldown=(0.2, 1.0))
    files, threads = horovod_torch.FILES, horovod_torch.ONE_THREAD
    job = make.start(
        horovod_torch.ARTICLE, kind=PyTorch, hosts=3, files=files, distribution=strategy, environment=threads
    )
    until_size(job, 3)
    horovod_torch.until_epoch(job, 1, "algo-1", "algo-2", "algo-3")
    ray_cluster.kill(ray_cluster.busy()[0])
    until_size(job, 3, 2, 3)  # on the node that had none
    horovod_torch.until_epoch(job, 3, job.hosts[-1])
    job.stop(wait=True)
    assert job.status == "Stopped"


@pytest.mark.soak
def test_the_autoscaler_brings_nodes_for_an_elastic_job_and_takes_them_back(home: Path, tmp_path: Path) -> None:
    """The head has no room for a host: Ray's autoscaler brings a node for the first, and one for each further one."""
    cluster = rays.Autoscaled(2, cores=4, idle_s=3)
    try:
        options = {"address": cluster.address, "resources_per_host": {"CPU": 4}}
        make = clusters.Make(tmp_path, instance_type="ray", backend_options=options)
        strategy = ElasticHorovod(max_hosts=2, min_hosts=1, warm=False, cooldown=(0.2, 1.0))
        job = make.start(MEETING, hosts=1, distribution=strategy)
        clusters.until(lambda: sizes(job)[-1:] == [2], check=lambda: check(job))
        assert set(sizes(job)) <= {1, 2}
        make.mark("enough")
        job.wait(logs=False, timeout=60)
        assert job.status == "Completed", job.describe().get("FailureReason")
        alive = "print(sum(node['Alive'] for node in ray.nodes()))"
        clusters.until(lambda: rays.asks(cluster.address, alive) == "1")
    finally:
        cluster.close()
        clusters.kill_everything_of(home)
