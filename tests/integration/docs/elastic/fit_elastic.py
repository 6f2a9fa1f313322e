import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer

Adam = tf.keras.optimizers.Adam


def build_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(2, activation="softmax", input_shape=(3,))])


def make_dataset():
    images = np.random.default_rng(1).random((256, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((images, (images.sum(axis=1) > 1.5).astype("int64")))


# DOCUMENTED
steps = int(model.optimizer.iterations)
assert steps == 20 * 4, steps
