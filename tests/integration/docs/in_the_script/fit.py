import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

SGD = tf.keras.optimizers.SGD


def build_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(2, activation="softmax", input_shape=(3,))])


def make_dataset():
    images = np.random.default_rng(1).random((512, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((images, (images.sum(axis=1) > 1.5).astype("int64")))


make_validation = make_dataset


def parse(image, label):
    return 2 * image, label


# DOCUMENTED
assert os.path.exists(os.path.join(os.environ["SM_MODEL_DIR"], "1", "saved_model.pb"))
