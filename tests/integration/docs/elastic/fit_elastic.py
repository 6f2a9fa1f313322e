import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer

Adam = tf.keras.optimizers.Adam


def build_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(2, activation="softmax", input_shape=(3,))])


def make_dataset():
    images = tf.random.stateless_uniform((256, 3), seed=(1, 1))
    return tf.data.Dataset.from_tensor_slices((images, tf.cast(tf.reduce_sum(images, axis=1) > 1.5, tf.int64)))


# DOCUMENTED
steps = int(model.optimizer.iterations)
assert steps == 20 * 4, steps
