"""An elastic training of one rank that is told to end within an epoch, and goes on when it is started again.

Each record adds one to a weight of its own, so that the weights say how often each was trained on.
"""

from __future__ import annotations

import os
import signal
import sys

from container import distributed
from container.checkpoint import Checkpointer

RECORDS, BATCH, EPOCHS, END_AT = 40, 8, 2, 8

cluster = distributed.init()

import tensorflow as tf  # noqa: E402 - as scripts have it

keras = tf.keras
#: Steps of one execution; the epoch's five are not a multiple of two.
AT_ONCE = int(sys.argv[3])


class Told(keras.callbacks.Callback):  # type: ignore[misc]
    """The notice, in the second epoch of the first start."""

    steps = 0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if sys.argv[2] == "end" and self.steps + batch + 1 == END_AT:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.steps += RECORDS // BATCH


def minus_sum(_: object, found: tf.Tensor) -> tf.Tensor:
    return -tf.reduce_sum(found)


layers = [
    keras.layers.Input((1,), dtype="int64"),
    keras.layers.Embedding(RECORDS, 1, embeddings_initializer="zeros"),
    keras.layers.Flatten(),
]
model = keras.Sequential(layers)
model.compile(
    optimizer=cluster.optimizer(keras.optimizers.SGD(1.0), op="sum"), loss=minus_sum, steps_per_execution=AT_ONCE
)
checkpointer = Checkpointer(sys.argv[1])
cluster.fit(
    model,
    lambda: tf.data.Dataset.range(RECORDS),
    parse=lambda record: (record[None], tf.constant(0.0)),
    global_batch_size=BATCH,
    epochs=EPOCHS,
    shuffle=RECORDS,
    seed=3,
    callbacks=[Told()],
    checkpointer=checkpointer,
    verbose=0,
)
counts = model.get_weights()[0][:, 0]
assert checkpointer.completed is not None
print("trained", counts.min(), counts.max(), "in", checkpointer.completed.step)
