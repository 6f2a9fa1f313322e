"""Elastic Horovod in containers: one is killed from outside, the others go on, and another comes in its place.

In Pipe mode, and no record is lost or counts twice.
"""

from __future__ import annotations

import clusters
import pytest
from containing import await_gone
from elastic_jobs import ENVIRONMENT, LEDGER, trained, until_size, worker_report

from estimators import ElasticHorovod
from estimators.backends.docker.engine import Engine
from estimators.inputs import ShuffleConfig, TrainingInput

pytestmark = [pytest.mark.timeout(1500), pytest.mark.horovod]


def test_a_killed_container_is_replaced_and_the_training_goes_on(make: clusters.Make, engine: Engine) -> None:
    data = make.folder / "data"
    data.mkdir()
    (data / "numbers").write_text("".join(f"{number}\n" for number in range(600)))
    job = make.start(
        LEDGER,
        hosts=2,
        inputs={"train": TrainingInput(str(data), input_mode="Pipe", shuffle_config=ShuffleConfig(7))},
        distribution=ElasticHorovod(max_hosts=2, cooldown=(0.1, 1.0)),
        environment=ENVIRONMENT,
    )
    until_size(job, 2)
    trained(make, job, 2)
    containers, _ = engine.leftovers({"fleetfit.job": job.name})
    [first] = [item for item in containers if any("algo-1" in str(name) for name in item["Names"])]
    engine.kill(first["Id"], "SIGKILL")
    until_size(job, 2, 1, 2)
    clusters.until(lambda: job.hosts == ["algo-2", "algo-3"])
    trained(make, job, 2)
    make.mark("enough")
    job.wait(logs=False, timeout=120)
    assert job.status == "Completed"
    said = worker_report(job)
    epochs = max(int(path.name.partition("-")[2]) for path in make.marks.glob("epoch-*")) + 1
    assert (said["least"], said["most"]) == (epochs, epochs)
    await_gone(engine, job.name)
