"""A job's script: reads channels whose shares are uneven, and evaluates on them. Nothing is trained."""

from __future__ import annotations

import json
import os
from pathlib import Path

import tensorflow as tf

from container import distributed
from container.pipe_dataset import PipeModeDataset

cluster = distributed.init()
found: dict[str, object] = {"rank": cluster.rank, "host": cluster.host}


def number_of(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Record ``r12`` is x = [12] and y = 12."""
    number = tf.strings.to_number(tf.strings.substr(record, 1, -1))
    return tf.reshape(number, [1]), number


for name, config in sorted(json.loads(os.environ["SM_INPUT_DATA_CONFIG"]).items()):
    place = Path(os.environ[f"SM_CHANNEL_{name.upper()}"])

    def make(name: str = name, place: Path = place, mode: str = config["TrainingInputMode"]) -> tf.data.Dataset:
        if mode == "Pipe":
            return PipeModeDataset(name, "TFRecord")
        files = sorted(str(path) for path in place.iterdir()) if place.is_dir() else []
        return tf.data.TFRecordDataset(files)

    holds = None if config["TrainingInputMode"] == "Pipe" else "host"
    batches = cluster.dataset(make, global_batch_size=4 * cluster.size, parse=number_of, holds=holds)
    numbers, steps = [], 0
    for x, _, *weights in batches:
        steps += 1
        counted = weights[0].numpy() > 0 if weights else [True] * len(x)
        numbers += [int(value) for value in x.numpy()[counted][:, 0]]
    found[name] = {"numbers": numbers, "steps": steps}
    with cluster.scope():
        model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1, use_bias=False)])
        model.compile(loss="mae")
    model.set_weights([tf.zeros([1, 1]).numpy()])
    found[f"{name} evaluated"] = cluster.evaluate(model, make, batch_size=3, parse=number_of, holds=holds)["loss"]
Path(os.environ["SM_OUTPUT_DATA_DIR"], f"rank-{cluster.rank}.json").write_text(json.dumps(found))
