"""Nine times 600,000 records, dealt to ranks through FIFOs and files: each is seen once in each epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feeding import write_objects

from estimators import MPI, TensorFlow
from estimators.inputs import TrainingInput

pytestmark = [
    pytest.mark.soak,
    pytest.mark.tensorflow,
    pytest.mark.horovod,
    pytest.mark.filterwarnings("ignore::estimators.PreflightWarning"),
]

SCRIPT = Path(__file__).with_name("count_records.py")
#: Hosts and processes of each; one seed after another takes them in turn.
SHAPES = [(2, 2), (1, 3), (3, 1), (2, 1), (1, 2), (1, 1)]
EPOCHS = 2


def draw(seed: int, records: int) -> dict[str, Any]:
    """A job's shape, its channel and how it reads; most read FIFOs."""
    choice = random.Random(seed)
    hosts, processes = SHAPES[seed % len(SHAPES)]
    return {
        "hosts": hosts,
        "processes": processes,
        "mode": choice.choice(["Pipe", "Pipe", "Pipe", "File"]),
        "distribution": choice.choice(["ShardedByS3Key", "FullyReplicated"]),
        "batch": choice.choice([37, 64, 100, 256, 1000, 4096]),
        "shuffle": choice.choice([0, 0, 100, 10_000]),
        "objects": draw_objects(choice, records),
    }


def draw_objects(choice: random.Random, records: int) -> list[int]:
    """So many records in each object: fewer objects than hosts, uneven ones, and some that are empty."""
    kind = choice.choice(["one", "few", "many", "many"])
    cuts = {"one": 0, "few": choice.randint(1, 3), "many": choice.randint(8, 40)}[kind]
    # Of ten places two are the ends, so that some objects are empty.
    places = sorted(choice.choice([0, records, *(choice.randint(0, records) for _ in range(8))]) for _ in range(cuts))
    return [end - begin for begin, end in zip([0, *places], [*places, records], strict=True)]


@pytest.mark.parametrize("seed", [*range(9), "new"], indirect=True)
def test_no_record_is_lost_or_doubled(
    count: Callable[[int], int], record: Callable[..., None], tmp_path: Path, seed: int
) -> None:
    records = count(600_000)
    drawn = draw(seed, records)
    print(f"seed {seed}: {drawn}")
    write_objects(tmp_path / "data", drawn["objects"])
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    estimator = TensorFlow(
        entry_point=SCRIPT.name,
        source_dir=str(tmp_path / "source"),
        instance_count=drawn["hosts"],
        instance_type="local_process",
        distribution=MPI(processes_per_host=drawn["processes"]),
        hyperparameters={"records": records, "batch": drawn["batch"], "shuffle": drawn["shuffle"], "epochs": EPOCHS},
    )
    channel = TrainingInput(str(tmp_path / "data"), distribution=drawn["distribution"], input_mode=drawn["mode"])
    job = estimator.fit({"train": channel}, logs=False)
    found = [np.load(path) for path in sorted(job.record.path.glob("hosts/*/ml/output/data/rank-*.npz"))]
    counts = sum(rank["counts"] for rank in found)
    lost, doubled = int((counts == 0).sum()), int((counts > 1).sum())
    record(
        "records",
        seed=seed,
        **{**drawn, "objects": len(drawn["objects"])},
        ranks=len(found),
        records=records,
        epochs=EPOCHS,
        lost=lost,
        doubled=doubled,
    )
    assert len(found) == drawn["hosts"] * drawn["processes"]
    assert (lost, doubled) == (0, 0)
    assert len({tuple(rank["steps"]) for rank in found}) == 1, "nobody waits for another's step"
