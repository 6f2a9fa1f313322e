"""Trains on a channel in Pipe mode and is killed within an epoch. ``resuming.py BASE OUT KILL [SHUFFLE]``

BASE is the host's tree, OUT a file that takes the records of each step as they are trained on, KILL the step at whose
end the process kills itself (0: never).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer
from container.pipe_dataset import PipeModeDataset

base, out, kill = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
shuffle = int(sys.argv[4]) or None
os.environ["SM_INPUT_DIR"] = str(base / "input")
cluster = distributed.init()
done = 0


class Model(tf.keras.Model):
    """Notes what it is trained on."""

    def train_step(self, data):  # type: ignore[no-untyped-def]
        global done
        x, _, *weights = data
        kept = weights[0].numpy() > 0 if weights else [True] * len(x)
        done += 1
        records = [f"{value:.0f}" for value, keep in zip(x[:, 0].numpy(), kept, strict=True) if keep]
        with open(out, "a") as file:
            file.write(f"{cluster.rank} {done} {' '.join(records)}\n")
        found = super().train_step(data)
        if done == kill:
            checkpointer.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def parse(record):  # type: ignore[no-untyped-def]
    number = tf.strings.to_number(tf.strings.substr(record, 1, 9))
    return tf.ensure_shape(tf.stack([number]), [1]), number * 0.0


inputs = tf.keras.Input([1])
model = Model(inputs, tf.keras.layers.Dense(1)(inputs))
model.compile(cluster.optimizer(tf.keras.optimizers.SGD(1e-9)), loss="mse", run_eagerly=True)
checkpointer = Checkpointer(base / "checkpoints", every=1, asynchronous=False)
model.fit(
    cluster.dataset(
        lambda: PipeModeDataset("train", "TFRecord"), global_batch_size=5, parse=parse, shuffle=shuffle, seed=None
    ),
    epochs=3,
    verbose=0,
    callbacks=cluster.callbacks(checkpointer),
)
