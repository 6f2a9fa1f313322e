"""A home for the jobs of each test, and where these run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import clusters
import fleet as fleets
import leaks
import places
import pytest
import ray_cluster as rays
import slurm
import spark_session as sparks
import sshd

from estimators.job import fleets as table

if TYPE_CHECKING:
    import ec2_machines
    from playwright.sync_api import Browser


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> Generator[None]:
    """Know what fixtures of more than one test open, which is no test's to close.

    No hook of a conftest: those are not asked for fixtures of the session.
    """
    if fixturedef.scope == "function":
        return (yield)
    before = leaks.open_files()
    try:
        return (yield)
    finally:
        leaks.keep_open(before)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """``$FLEETFIT_HOME``; what still runs at the test's end is killed and removed."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    clusters.kill_everything_of(tmp_path / "home")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in for the command line, which sees nothing that others have left behind."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    # A short path, or sockets would not fit into it.
    temporary = tempfile.mkdtemp(prefix="cli-", dir="/tmp")
    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{temporary}/none")  # nor are their containers
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="session")
def machines() -> Iterator[fleets.Fleet]:
    """Machines of this process's tests."""
    made = fleets.Fleet(places.MACHINES)
    yield made
    made.close()


@pytest.fixture
def fleet(machines: fleets.Fleet, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fleets.Fleet]:
    """The machines, and the backend that runs jobs on them; after each test nothing is left on them."""
    paths = [str(fleets.PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(str(fleets.PLUGIN))
    table.added.cache_clear()
    monkeypatch.setattr(clusters, "on_machines", lambda: [pid for one in machines.machines for pid in one.pids()])
    yield machines
    clusters.kill_everything_of(home)
    table.added.cache_clear()
    left: list[str] = []
    for machine in machines.machines:
        machine.mend()
        clusters.until(lambda machine=machine: not machine.pids())
        found = [*machine.files("hosts/*"), *machine.files("fleetfit-????????")]
        found = [path for path in found if "/.cache/" not in path]  # what hosts keep for other jobs
        if found:
            machine.tidy()  # it is this test's fault, and not the next one's
        left += found
    assert left == [], left


@pytest.fixture(scope="session")
def nodes(machines: fleets.Fleet) -> Iterator[slurm.Cluster]:
    """A Slurm cluster of the machines; it is there in two seconds."""
    assert slurm.possible(), "Slurm needs root and Debian's slurm-wlm and munge"
    made = slurm.Cluster(machines)
    yield made
    made.close()


@pytest.fixture
def slurm_cluster(
    nodes: slurm.Cluster, fleet: fleets.Fleet, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[slurm.Cluster]:
    """The cluster, and ``$SLURM_CONF``; after each test its queue is empty, and all nodes are there."""
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)
    yield nodes
    clusters.kill_everything_of(home)
    nodes.recover()


@pytest.fixture(scope="session")
def raylets() -> Iterator[rays.Cluster]:
    """A Ray cluster of this machine; it is there in ten seconds."""
    made = rays.Cluster()
    yield made
    made.close()


@pytest.fixture
def ray_cluster(raylets: rays.Cluster, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[rays.Cluster]:
    """The cluster; after each test nothing of its jobs is left on it, and all nodes are there."""
    monkeypatch.setattr(clusters, "on_machines", raylets.pids)
    yield raylets
    clusters.kill_everything_of(home)
    clusters.until(lambda: not raylets.pids())
    raylets.recover()


@pytest.fixture(scope="session")
def executors() -> Iterator[sparks.Session]:
    """A session of Spark with executors of this machine; it is there in half a minute."""
    made = sparks.shared()
    yield made
    made.close()


@pytest.fixture
def spark(executors: sparks.Session, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sparks.Session]:
    """The session; after each test nothing of its jobs is left on its executors, and all of these are there."""
    monkeypatch.setattr(clusters, "on_machines", executors.pids)
    yield executors
    clusters.kill_everything_of(home)
    clusters.until(lambda: not executors.pids())
    executors.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def cloud() -> Iterator[ec2_machines.Machines]:
    """A region of EC2 with machines."""
    import ec2_machines

    sshd.program()
    made = ec2_machines.Machines()
    yield made
    made.close()


@pytest.fixture
def ec2(cloud: ec2_machines.Machines, monkeypatch: pytest.MonkeyPatch) -> Iterator[ec2_machines.Machines]:
    """A region in which nothing runs, neither before nor after a test."""
    cloud.reset()
    for name, value in cloud.server.environment.items():
        monkeypatch.setenv(name, value)
    yield cloud
    clusters.until(lambda: not cloud.alive())
    clusters.until(lambda: not cloud.removers())


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """Where the test's jobs run; see :mod:`places`."""
    return str(getattr(request, "param", places.PROCESS))


@pytest.fixture
def make(place: str, tmp_path: Path, home: Path, request: pytest.FixtureRequest) -> clusters.Make:
    """Makes estimators whose code is given as text."""
    if place == places.PROCESS:
        # A variable of all ranks has their path, which has to be the same for what has been imported under it.
        warm = "warm" in request.fixturenames
        return clusters.Make(tmp_path, marks=Path(tempfile.gettempdir()) / "marks" if warm else None)
    if place == places.SLURM:
        return places.on_slurm(request.getfixturevalue("slurm_cluster"), tmp_path, home)
    if place == places.RAY:
        return places.on_ray(request.getfixturevalue("ray_cluster"), tmp_path, home)
    if place == places.SPARK:
        request.getfixturevalue("spark")
        return places.on_spark(tmp_path, home)
    makes = places.on_ssh if place == places.SSH else places.on_fleet
    return makes(request.getfixturevalue("fleet"), tmp_path, home)
