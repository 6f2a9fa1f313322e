"""Jobs on a Ray cluster: what only Ray has. What all clusters hold, they hold here too (:mod:`places`)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import clusters
import documents
import places
import pytest
import ray_cluster as rays
from run_documents import project_of, run_document

from estimators import FailurePolicy
from estimators.inputs import TrainingInput

#: Reads its channels, saves a checkpoint in its first attempt and waits, and finds it in the second.
READS_AND_SAVES = """
import os, pathlib, time
import aid
pipe = os.environ["SM_CHANNEL_PIPE"] + "_0"
found = {
    "pipe": open(pipe).read().split(),
    **{name: sorted(path.name for path in pathlib.Path(os.environ["SM_CHANNEL_" + name.upper()]).iterdir())
       for name in ("part", "whole")},
}
place = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
if os.environ["FLEETFIT_ATTEMPT"] != "0":
    found["weights"] = (place / "checkpoint-1-step-10" / "weights").read_text()
    aid.report(**found)
    raise SystemExit
if aid.RANK == 0:
    staged = place / ".staged"
    staged.mkdir()
    (staged / "weights").write_text("of the first attempt")
    (staged / "manifest.json").write_text("{}")
    staged.rename(place / "checkpoint-1-step-10")
aid.mark(f"ready-{aid.RANK}")
time.sleep(300)
"""


@pytest.fixture
def make(ray_cluster: rays.Cluster, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs run on the cluster."""
    return places.on_ray(ray_cluster, tmp_path, home)


def message(job: object) -> str:
    """What the job's status says last."""
    return str(job.describe()["SecondaryStatusTransitions"][-1]["StatusMessage"])  # type: ignore[attr-defined]


def agents(cluster: rays.Cluster) -> dict[str, clusters.Process]:
    """The agents on the nodes, by their host."""
    found = {}
    for pid in cluster.pids():
        one = clusters.process(pid)
        if one is not None and "--lifeline" in one.argv:
            host = next((child.host for child in clusters.below(pid) if child.kind == "toolkit"), "?")
            found[host] = one
    return found


def actors(job: object, cluster: rays.Cluster) -> list[clusters.Process]:
    """Ray's workers that hold the places of hosts."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [one for one in map(clusters.process, pids) if one is not None and one.argv[:1] == ("ray::HostActor.wait",)]


def test_a_job_of_two_hosts_runs_on_two_nodes_and_gives_all_back(
    make: clusters.Make, ray_cluster: rays.Cluster
) -> None:
    job = make.run(
        """
        import os
        import aid
        for number in range(20_000):
            print(f"line {number} {'é' * (number % 40)}")
        with open(os.path.join(os.environ["SM_MODEL_DIR"], aid.HOST), "w") as file:
            file.write(aid.HOST)
        aid.report(rays=[name for name in os.environ if name.startswith("RAY_") or name == "OMP_NUM_THREADS"])
        """,
        hosts=2,
        environment={"OF_THE_CALLER": "1"},
    )
    assert job.status == "Completed"
    # Ray's variables would have a script that uses Ray take itself for a worker, and its one thread be all there is.
    assert [said["rays"] for said in clusters.reports(job).values()] == [[], []]
    for rank in (0, 1):
        lines = [line.split() for line in clusters.printed(job, rank) if line.startswith("line ")]
        assert [int(line[1]) for line in lines] == list(range(20_000))
    assert {path.name for path in (job.record.path / "hosts").glob("*/ml/model/*")} == {"algo-1", "algo-2"}
    clusters.until(lambda: not ray_cluster.pids() and not actors(job, ray_cluster))
    # The head learns from the nodes what is free, a moment after the workers have ended.
    count = "print(ray.available_resources().get('CPU'), ray.cluster_resources()['CPU'])"
    clusters.until(lambda: len(set(rays.asks(ray_cluster.address, count).split())) == 1)


@pytest.mark.parametrize(
    "victim",
    [
        "supervisor",
        "actor",
        "toolkit",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("driver", "agent")),
    ],
)
def test_nothing_is_left_on_any_node_when_something_is_killed(
    victim: str, make: clusters.Make, ray_cluster: rays.Cluster
) -> None:
    job = make.start(
        clusters.LEAVES_A_CHILD,
        hosts=3,
        ready=3,
    )
    snapshot = clusters.Snapshot(job)
    roots = {agent.pid for agent in agents(ray_cluster).values()}
    family = {*clusters.below(*roots), *(one for pid in roots if (one := clusters.process(pid)) is not None)}
    assert len(roots) == 3 and sum("time.sleep(300)" in " ".join(one.argv) for one in family) >= 3
    holding = actors(job, ray_cluster)
    if victim == "supervisor":
        snapshot.supervisor.kill()
    elif victim == "actor":
        holding[0].kill()
    elif victim == "toolkit":
        snapshot.find("toolkit", "algo-2").kill()
    elif victim == "driver":
        below = clusters.below(snapshot.supervisor.pid)
        next(one for one in below if one.argv[-1].endswith("ray/driver.py")).kill()
    else:
        agents(ray_cluster)["algo-2"].kill()
    clusters.until(lambda: not any(one.alive for one in (*family, *holding)))
    clusters.await_terminal(job)
    assert job.status == "Failed"
    if victim in ("actor", "agent"):
        assert "was lost" in str(job.describe()["FailureReason"])


def test_what_is_lacking_is_named_until_a_node_brings_it(make: clusters.Make, ray_cluster: rays.Cluster) -> None:
    """Where hosts have nodes of their own: they may share one, too."""
    ray_cluster.wait()
    script = "from mpi4py import MPI\nimport aid\naid.report(size=MPI.COMM_WORLD.allreduce(1))\n"
    shared = make.run(script, hosts=2, processes=2, options=make.changed(strategy="STRICT_PACK"))
    assert [said["size"] for said in clusters.reports(shared).values()] == [4] * 4
    many = make(clusters.WAITS, hosts=rays.NODES + 2).fit(wait=False)
    asked = {"resources_per_host": {"CPU": 1, "special": 2}, "labels": {"tier": "gold"}, "accelerator_type": "A100"}
    special = make("import aid\naid.report()", options=make.changed(**asked))
    rare = special.fit(wait=False)
    clusters.until(lambda: "Ray has 4 of 5 nodes for 5 × {CPU: 1} (STRICT_SPREAD)" in message(many))
    clusters.until(lambda: "Ray has no node yet with the labels {'tier': 'gold'}" in message(rare))
    assert many.describe()["SecondaryStatus"] == rare.describe()["SecondaryStatus"] == "Pending"
    ray_cluster.add(resources={"special": 2, "accelerator_type:A100": 1}, labels={"tier": "gold"})
    make.await_ready(5, many)
    clusters.await_terminal(rare)
    assert rare.status == "Completed"
    full = make("pass", options=make.changed(resources_per_host={"CPU": rays.CORES})).fit(wait=False)
    clusters.until(lambda: "0 of 5 nodes of that size have enough free" in message(full))
    full.stop()
    many.stop()
    for job in (full, many):
        clusters.await_terminal(job)
        assert job.status == "Stopped"
    ray_cluster.kill(ray_cluster.nodes[-1])
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    job = make("pass", options=make.changed(address=address)).fit(wait=False)
    clusters.await_terminal(job)
    assert f"there is no Ray at '{address}': [Errno 111] Connection refused" in job.describe()["FailureReason"]


def test_a_node_that_is_lost_is_another_attempt_on_another_with_its_data_and_checkpoints(
    make: clusters.Make, ray_cluster: rays.Cluster, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(4):
        (tmp_path / "data" / f"part-{number}").write_text(f"{number}-0\n{number}-1\n")
    data, sharded, saved = str(tmp_path / "data"), "ShardedByS3Key", tmp_path / "saved"
    job = make.start(
        READS_AND_SAVES,
        hosts=2,
        ready=2,
        inputs={
            "pipe": TrainingInput(data, distribution=sharded, input_mode="Pipe"),
            "part": TrainingInput(data, distribution=sharded),
            "whole": data,
        },
        checkpoint_s3_uri=saved.as_uri(),
        options={**make.changed(), "failure_policy": FailurePolicy(max_failures=1)},
    )
    clusters.until((saved / "checkpoint-1-step-10" / "manifest.json").exists)
    ray_cluster.kill(ray_cluster.busy()[0])
    clusters.await_terminal(job)
    assert job.status == "Completed", job.describe().get("FailureReason")
    assert "was lost" in str(job.describe()["Fleetfit"]["attempts"])
    one, other = clusters.reports(job).values()
    assert sorted(one["pipe"] + other["pipe"]) == [f"{number}-{line}" for number in range(4) for line in range(2)]
    assert len(one["pipe"]) == len(other["pipe"]) == 4
    assert sorted(one["part"] + other["part"]) == one["whole"] == other["whole"] == [f"part-{n}" for n in range(4)]
    assert one["weights"] == other["weights"] == "of the first attempt"


@pytest.mark.tensorflow
@pytest.mark.parametrize("document", documents.that_need("ray"), ids=project_of)
def test_the_blocks_that_need_ray_do_what_the_document_says(
    document: Path, tmp_path: Path, ray_cluster: rays.Cluster, prepared_digits: Path
) -> None:
    address = {"RAY_ADDRESS": ray_cluster.address}
    run_document(document, tmp_path, "ray", digits=prepared_digits, environment=address)
