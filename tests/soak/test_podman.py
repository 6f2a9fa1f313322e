"""Jobs in containers on Podman, by its Docker-compatible socket. Run by hand: ``make soak`` where Podman is installed.

It needs ``podman``, ``netavark``, ``aardvark-dns`` and ``runc``, a Docker engine that has the images, and some minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import clusters
import pytest

from estimators import TensorFlow, TrainingJobError
from estimators.backends.docker.engine import Engine
from estimators.backends.images.errors import EngineError
from estimators.backends.images.toolkit import IMAGE

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed"),
]

#: Where there is no systemd, nor cgroups that may be changed, and limits may not be raised.
_SETTINGS = """
[engine]
runtime = "runc"
events_logger = "file"
cgroup_manager = "cgroupfs"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[network]
network_backend = "netavark"
"""

SCRIPT = """
import os, socket, sys
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
total = hvd.allreduce(tf.constant([float(hvd.rank() + 1)]), op=hvd.Sum)
print("rank", hvd.rank(), "of", hvd.size(), "on", socket.gethostname(), "sum", float(total[0]))
open(os.path.join(os.environ["SM_MODEL_DIR"], socket.gethostname()), "w").close()
if "--fails" in sys.argv:
    raise ValueError("no data")
"""


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Podman's service, with our image."""
    (tmp_path / "containers.conf").write_text(_SETTINGS)
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    address = f"unix://{tmp_path}/podman.sock"
    service = subprocess.Popen(["podman", "system", "service", "--time=0", address], stderr=subprocess.DEVNULL)
    try:
        if subprocess.run(["podman", "image", "exists", IMAGE], check=False).returncode != 0:
            with subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE) as saved:
                subprocess.run(["podman", "load", "--quiet"], stdin=saved.stdout, check=True)
        monkeypatch.setenv("DOCKER_HOST", address)
        clusters.until(lambda: _answers(address))
        yield Engine()
    finally:
        clusters.kill_everything_of(tmp_path / "home")
        service.terminate()
        service.wait()


def _answers(address: str) -> bool:
    try:
        return bool(Engine({**os.environ, "DOCKER_HOST": address}).info())
    except EngineError:
        return False


def test_horovod_over_two_containers_of_podman(podman: Engine, tmp_path: Path) -> None:
    from estimators import MPI

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)

    def estimator(**hyperparameters: object) -> TensorFlow:
        return TensorFlow(
            entry_point="train.py",
            source_dir=str(tmp_path / "code"),
            instance_type="local",
            instance_count=2,
            distribution=MPI(),
            hyperparameters=hyperparameters,
        )

    job = clusters.fit(estimator(), logs=False)
    said = clusters.all_text(job)
    assert "rank 0 of 2 on algo-1 sum 3.0" in said and "rank 1 of 2 on algo-2 sum 3.0" in said
    with pytest.raises(TrainingJobError, match="ValueError: no data"):
        clusters.fit(estimator(fails=True), logs=False, job_name="podman-fails")
    clusters.until(lambda: not any(podman.leftovers()))
