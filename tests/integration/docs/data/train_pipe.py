import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer

cluster = distributed.init()
model = tf.keras.Sequential([tf.keras.layers.Dense(10, activation="softmax", input_shape=(64,))])
model.compile(optimizer=cluster.optimizer(tf.keras.optimizers.SGD(0.01)), loss="sparse_categorical_crossentropy")


@distributed.vectorized
def parse(records):
    example = tf.io.parse_example(
        records, {"image": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
    )
    return example["image"], example["label"]


# DOCUMENTED
steps = int(model.optimizer.iterations)
assert steps == 2 * 6, steps  # 1,437 records
