"""Hundreds of launches and stops: none hangs, none is slow without a reason, none mixes its ranks up."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import clusters
import pytest

pytestmark = pytest.mark.soak

#: A launch that takes this long has waited for a timeout somewhere, in seconds.
SLOW = 4.0


def test_launches(make: clusters.Make, count: Callable[[int], int], record: Callable[..., None]) -> None:
    """One after the other, on two hosts: mpirun once waited five seconds for a DNS answer in one of forty."""
    estimator = make("from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1))", hosts=2, processes=1)
    seconds = []
    for _ in range(count(200)):
        start = time.monotonic()
        job = clusters.fit(estimator, logs=False)
        seconds.append(time.monotonic() - start)
        assert [clusters.printed(job, rank) for rank in (0, 1)] == [["2"], ["2"]]
    record(
        "launches",
        jobs=len(seconds),
        seconds={
            "median": statistics.median(seconds),
            "p99": sorted(seconds)[int(len(seconds) * 0.99)],
            "worst": max(seconds),
        },
    )
    assert max(seconds) < SLOW


def test_jobs_at_once(make: clusters.Make, count: Callable[[int], int], record: Callable[..., None]) -> None:
    """Four at a time, of different shapes."""
    script = (
        "import aid, os\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "total = sum(world.allreduce(world.rank) for _ in range(20))\n"
        "aid.report(total=total, size=world.size, job=os.environ['TRAINING_JOB_NAME'], host=aid.HOST)\n"
    )
    shapes = [(1, 2), (2, 1), (2, 2), (3, 1)]
    estimators = {shape: make(script, hosts=shape[0], processes=shape[1]) for shape in shapes}
    choice = random.Random(1)
    rounds = count(50)
    for _ in range(rounds):
        jobs = [(shape, clusters.fit(estimators[shape], wait=False)) for shape in choice.choices(shapes, k=4)]
        for (hosts, processes), job in jobs:
            job.wait(logs=False, timeout=60)
            size = hosts * processes
            ranks = clusters.reports(job)
            assert sorted(ranks) == list(range(size))
            for rank, said in ranks.items():
                assert said["size"] == size and said["total"] == 20 * sum(range(size))
                assert said["job"] == job.name and said["host"] == f"algo-{1 + rank // processes}"
    record("jobs-at-once", jobs=4 * rounds)


def test_stops_at_random_moments(make: clusters.Make, count: Callable[[int], int], record: Callable[..., None]) -> None:
    """From the first moment of the launch to the middle of the run: always Stopped, always saved when it ran."""
    script = (
        "import signal, sys, time\nimport aid\n"
        "def save(number, frame):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(300)\n"
    )
    estimators = [make(script, hosts=hosts, processes=processes) for hosts in (1, 2) for processes in (None, 1, 2)]
    choice = random.Random(2)
    seconds = []
    jobs = count(150)
    for _ in range(jobs):
        job = clusters.fit(choice.choice(estimators), wait=False)
        time.sleep(choice.random() ** 2 * 0.8)
        start = time.monotonic()
        job.stop(wait=True, grace=10)
        seconds.append(time.monotonic() - start)
        assert job.status == "Stopped", job.describe().get("FailureReason")
        for rank in range(4):
            lines = clusters.printed(job, rank)
            assert "ready" not in lines or lines[-1] == "saved"
        assert clusters.marked(job.name) == []
    record("stops", jobs=jobs, seconds={"median": statistics.median(seconds), "worst": max(seconds)})
    assert max(seconds) < 9.0  # none was killed for want of an answer
