"""A job's script: counts how often this rank gets each record in each epoch. Nothing is trained."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

from container import distributed
from container.pipe_dataset import PipeModeDataset

parser = argparse.ArgumentParser()
for name in ("records", "batch", "shuffle", "epochs"):
    parser.add_argument(f"--{name}", type=int, required=True)
asked, _ = parser.parse_known_args()  # the platform's own come, too

cluster = distributed.init()
[(channel, config)] = json.loads(os.environ["SM_INPUT_DATA_CONFIG"]).items()
pipe = config["TrainingInputMode"] == "Pipe"
sharded = config["S3DistributionType"] == "ShardedByS3Key"


def number_of(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Record ``r12`` is x = [12] and y = 0."""
    return tf.reshape(tf.strings.to_number(tf.strings.substr(record, 1, -1), tf.int64), [1]), tf.constant(0.0)


def make() -> tf.data.Dataset:
    if pipe:
        return PipeModeDataset(channel, "TFRecord")
    place = Path(os.environ[f"SM_CHANNEL_{channel.upper()}"])
    return tf.data.TFRecordDataset(sorted(str(path) for path in place.iterdir()) if place.is_dir() else [])


batches = cluster.dataset(
    make,
    global_batch_size=asked.batch * cluster.size,
    parse=number_of,
    shuffle=asked.shuffle or None,
    holds=None if pipe else "host" if sharded else "all",
)
counts = np.zeros([asked.epochs, asked.records], np.int64)
steps = np.zeros(asked.epochs, np.int64)
for epoch in range(asked.epochs):
    for x, _, *weights in batches:
        steps[epoch] += 1
        counted = weights[0].numpy() > 0 if weights else np.ones(len(x), bool)
        np.add.at(counts[epoch], x.numpy()[counted][:, 0], 1)
np.savez(Path(os.environ["SM_OUTPUT_DATA_DIR"], f"rank-{cluster.rank}.npz"), counts=counts, steps=steps)
