"""Trains on files' records, killed within an epoch or not. ``going_on.py FOLDER KILL known|unknown``

Each time a record is trained on, it adds one to its own weight: after the training the weights say which were. KILL is
the step at whose end the process kills itself (0: never).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from container import distributed
from container.checkpoint import Checkpointer

cluster = distributed.init()

import tensorflow as tf  # noqa: E402 - init() comes first

from container.distributed.tensorflow.callbacks import KerasCallback  # noqa: E402

keras = tf.keras
folder, kill, known = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "known"
RECORDS, BATCH, EPOCHS = 58, 4, 3
STEPS = 15
tf.random.set_seed(0)


def records() -> Any:
    """All of them; without a filter the dataset knows how many."""
    found = tf.data.Dataset.range(RECORDS)
    return found if known else found.filter(lambda record: record >= 0)


class KillItself(KerasCallback):
    """After so many steps of this process."""

    done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        if self.done == kill:
            checkpointer.wait()
            os.kill(os.getpid(), signal.SIGKILL)


model = keras.Sequential(
    [
        keras.layers.Input([1], dtype="int64"),
        keras.layers.Embedding(RECORDS, 1, embeddings_initializer="zeros"),
        keras.layers.Flatten(),
    ]
)
model.compile(optimizer=cluster.optimizer(keras.optimizers.SGD(1.0)), loss=lambda y, found: -tf.reduce_sum(found))
checkpointer = Checkpointer(folder, every=1, asynchronous=False)
model.fit(
    cluster.dataset(
        records,
        global_batch_size=BATCH,
        parse=lambda record: (record[None], tf.constant(0.0)),
        shuffle=8,
        seed=1,
    ),
    # Of a dataset that knows its end, as many steps as an epoch has are no others than none.
    steps_per_epoch=STEPS if known else None,
    epochs=EPOCHS,
    verbose=0,
    callbacks=[*cluster.callbacks(checkpointer), KillItself()],
)
weights = model.get_weights()[0][:, 0]
assert checkpointer.progress is not None
print(
    "ended",
    json.dumps(
        {
            "least": float(weights.min()),
            "most": float(weights.max()),
            "iterations": int(model.optimizer.iterations),
            "step": checkpointer.progress.step,
        }
    ),
)
