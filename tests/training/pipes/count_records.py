"""A job's script: reads its channels and leaves which records each rank got. Nothing is trained."""

from __future__ import annotations

import json
import os
from pathlib import Path

import tensorflow as tf

from container import distributed
from container.pipe_dataset import PipeModeDataset

cluster = distributed.init()
found: dict[str, object] = {"rank": cluster.rank, "channels": {}}
for name, config in json.loads(os.environ["SM_INPUT_DATA_CONFIG"]).items():
    place = Path(os.environ[f"SM_CHANNEL_{name.upper()}"])

    def make(name: str = name, place: Path = place, mode: str = config["TrainingInputMode"]) -> tf.data.Dataset:
        if mode == "Pipe":
            return PipeModeDataset(name, "TFRecord")
        return tf.data.TFRecordDataset(sorted(str(path) for path in place.iterdir()))

    holds = None if name.startswith("pipe") else "host" if name == "file_sharded" else "all"
    records = cluster.dataset(make, global_batch_size=100 * cluster.size, parse=lambda record: (record, 0), holds=holds)
    numbers = [int(record[1:]) for batch in records for record in batch[0].numpy()]
    found["channels"][name] = {"numbers": numbers, "place": str(place)}  # type: ignore[index]
try:
    cluster.dataset(lambda: tf.data.Dataset.range(8), global_batch_size=cluster.size)
except distributed.RefusedError as error:
    assert "'file_sharded'" in str(error) and "holds='host'" in str(error), error
else:
    raise AssertionError("which records there are was guessed")
Path(os.environ["SM_OUTPUT_DATA_DIR"], f"rank-{cluster.rank}.json").write_text(json.dumps(found))
