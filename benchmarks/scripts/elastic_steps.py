"""A small training that writes when each step ended, elastic by Horovod's own API or not, for fit() and horovodrun."""

# ruff: noqa: E402 - the time is taken before anything is imported

import os
import time
import uuid

began = time.monotonic()
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
import tf_keras as keras
from horovod.tensorflow.functions import broadcast_object, broadcast_variables

folder = os.environ["STEPS_FOLDER"]
elastic = os.environ.get("STEPS_ELASTIC", "1") == "1"
own = uuid.uuid4().hex
with open(os.path.join(folder, f"import-{own}"), "w") as file:
    file.write(str(time.monotonic() - began))

hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential([layers.Input((64,)), layers.Dense(256, activation="relu"), layers.Dense(10)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
model.compile(optimizer=optimizer, loss="mse")
optimizer.build(model.trainable_variables)
inputs, targets = np.ones((32, 64), np.float32), np.ones((32, 10), np.float32)
steps = open(os.path.join(folder, f"steps-{own}"), "w", buffering=1)  # noqa: SIM115 - until it ends
commit_every = int(os.environ.get("COMMIT_EVERY", "10"))


def step(number):  # type: ignore[no-untyped-def]
    """One step, noted."""
    model.train_on_batch(inputs, targets)
    steps.write(f"{time.time_ns()} {hvd.size()} {hvd.rank()} {os.getpid()} {number}\n")


def enough():  # type: ignore[no-untyped-def]
    """Whether the benchmark has what it wants, for all ranks alike."""
    return broadcast_object(os.path.exists(os.path.join(folder, "enough")), 0)


def train(state):  # type: ignore[no-untyped-def]
    """Train until the benchmark has what it wants."""
    while True:
        state.batch += 1
        step(state.batch)
        if state.batch % commit_every == 0:
            state.commit()
            if enough():
                return


if elastic:
    hvd.elastic.run(train)(hvd.elastic.KerasState(model, batch=0, epoch=0))
else:
    broadcast_variables(model.variables, root_rank=0)
    number = 0
    while number % commit_every or not enough():
        number += 1
        step(number)
