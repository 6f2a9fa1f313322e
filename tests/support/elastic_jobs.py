"""What tests of elastic jobs share, on any backend."""

from __future__ import annotations

import json
from typing import Any

import clusters

from estimators import TrainingJob

#: Under ``cluster.fit`` each record adds one to its own weight, each time that it is trained on: after the training the
#: weights are the ledger. The records are numbers, in Pipe mode if the job has a channel.
LEDGER = """
import os, time
import aid
from container import distributed
cluster = distributed.init()
import numpy as np, tensorflow as tf, tf_keras as keras

RECORDS = 600

class Count(keras.losses.Loss):
    def __init__(self):
        super().__init__(reduction="sum")
    def call(self, y_true, y_pred):
        return -tf.reduce_sum(y_pred, axis=-1)

model = keras.Sequential([
    keras.layers.Input((1,), dtype="int64"),
    keras.layers.Embedding(RECORDS, 1, embeddings_initializer="zeros"),
    keras.layers.Flatten(),
])
model.compile(optimizer=cluster.optimizer(keras.optimizers.SGD(1.0), op="sum"), loss=Count())

class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)
    def on_epoch_end(self, epoch, logs=None):
        if cluster.is_chief:
            aid.mark(f"epoch-{epoch}", cluster.size)
        self.model.stop_training = os.path.exists(os.path.join(aid.MARKS, "enough"))

def records():
    if "SM_CHANNEL_TRAIN" not in os.environ:
        return tf.data.Dataset.range(RECORDS)
    from container.pipe_dataset import PipeModeDataset
    return PipeModeDataset("train", "TextLine").map(lambda line: tf.strings.to_number(line, tf.int64))

history = cluster.fit(
    model,
    records,
    parse=lambda record: (record[None], tf.constant(0.0)),
    global_batch_size=12, epochs=10_000, shuffle=RECORDS, seed=7,
    on_resize="keep_global_batch", commit_every=3, callbacks=[Pace()], verbose=0,
)
counts = model.get_weights()[0][:, 0]
if cluster.is_chief:
    aid.report(least=float(counts.min()), most=float(counts.max()), size=cluster.size)
    cluster.report(size=cluster.size)
"""

#: As users of horovodrun have it. Each step adds one to the weight, whichever ranks make it: with a part of the state
#: lost the weight, the optimizer's count and the state's own would differ where a training begins or goes on. The first
#: host stays three steps after a commit in the second epoch, until it is killed.
HOROVODS_OWN = """
import os, time
import aid
import tensorflow as tf, tf_keras as keras
import horovod.tensorflow as hvd
from horovod.tensorflow.functions import broadcast_object
from horovod.tensorflow.keras import DistributedOptimizer
from horovod.tensorflow.keras.elastic import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
hvd.init()
STEPS, COMMIT = 20, 5

model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
model.compile(optimizer=optimizer, loss=lambda wanted, found: -tf.reduce_mean(found))
optimizer.build(model.trainable_variables)
state = hvd.elastic.TensorFlowKerasState(model, batch=0, epoch=0, trained=0)

def weight():
    return float(model.get_weights()[0][0, 0])

class Count(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)
        state.trained += 1
        if aid.HOST == "algo-1" and state.trained == STEPS + COMMIT + 3:
            aid.mark("holds")
            aid.wait_for("nothing", 300)
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = broadcast_object(os.path.exists(os.path.join(aid.MARKS, "enough")), 0)

@hvd.elastic.run
def train(state):
    assert weight() == int(optimizer.iterations.numpy()) == state.trained, (weight(), optimizer.iterations, vars(state))
    print(f"from step {state.trained}: batch {state.batch} of epoch {state.epoch}, with {hvd.size()}", flush=True)
    state.model.fit(
        tf.data.Dataset.from_tensors((tf.ones((8, 1)), tf.ones((8, 1)))).repeat(),
        steps_per_epoch=STEPS, epochs=10_000, verbose=0,
        callbacks=[
            Count(), UpdateBatchStateCallback(state), UpdateEpochStateCallback(state),
            CommitStateCallback(state, batches_per_commit=COMMIT),
        ],
    )

train(state)
aid.report(trained=state.trained, weight=weight(), batch=state.batch)
"""

#: Keeps its place as a worker of Horovod's does, without Horovod's core and so without TensorFlow: all ask for their
#: ranks again and again, and learn by that who is there. The worker that begins with the rank FAILS only fails.
MEETING = """
import os, sys, time, urllib.request
import aid

PLACE = "http://{HOROVOD_GLOO_RENDEZVOUS_ADDR}:{HOROVOD_GLOO_RENDEZVOUS_PORT}/rank_and_size/{HOROVOD_HOSTNAME}:0"

if os.environ["HOROVOD_RANK"] == os.environ.get("FAILS"):
    sys.exit("out of memory")
while not os.path.exists(os.path.join(aid.MARKS, "enough")):
    with urllib.request.urlopen(PLACE.format(**os.environ)) as answer:
        rank = int(answer.read().split(b",")[0])
    if rank < 0:
        sys.exit("it has no place any more")
    time.sleep(0.02)
"""

ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def reports(job: TrainingJob) -> list[dict[str, Any]]:
    """What the job's workers have reported, in the order in which they did."""
    found = (line.text.partition("report ")[2] for line in job.log_lines() if line.text.startswith("report "))
    return [json.loads(text) for text in found]


def sizes(job: TrainingJob) -> list[int]:
    """The number of workers of each membership."""
    return [event.data["size"] for event in job.record.events() if event.kind == "resized"]


def check(job: TrainingJob) -> None:
    assert job.status == "InProgress", job.describe().get("FailureReason")


def until_size(job: TrainingJob, *expected: int) -> None:
    clusters.until(lambda: sizes(job) == list(expected), check=lambda: check(job))


def trained(make: clusters.Make, job: TrainingJob, size: int) -> None:
    """Wait for a whole epoch at a size."""

    def seen() -> bool:
        found = sorted(make.marks.glob("epoch-*"), key=lambda path: int(path.name.partition("-")[2]))
        return bool(found) and found[-1].read_text() == str(size)

    clusters.until(seen, check=lambda: check(job))


def worker_report(job: TrainingJob) -> dict[str, Any]:
    lines = [line.text for line in job.log_lines() if "report {" in line.text]
    found: dict[str, Any] = json.loads(lines[-1].partition("report ")[2])
    return found


#: Saves after each epoch; fails once in the third, and then waits in the fifth until it is told to go on.
FAILING = """
import os
import aid
from container import distributed
from container.checkpoint import Checkpointer
cluster = distributed.init()
import tensorflow as tf, tf_keras as keras

class Course(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        aid.mark(f"epoch-{epoch}", os.getpid())
        if epoch == 2 and not os.path.exists(os.path.join(aid.MARKS, "failed")):
            aid.mark("failed")
            raise ValueError("loss is nan")
        if epoch == 4:
            aid.wait_for("enough", 120)

model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer=cluster.optimizer(keras.optimizers.SGD(0.01)), loss="mse")
data = lambda: tf.data.Dataset.range(8).map(lambda x: (tf.cast([x], tf.float32), tf.cast(x, tf.float32)))
history = cluster.fit(
    model, data, global_batch_size=4, epochs=6, seed=1, callbacks=[Course()], checkpointer=Checkpointer(), verbose=0
)
aid.report(epochs=len(history))
"""

#: An epoch without an end, which is left by a stop alone; it tells the learning rate, in parts of what it began with.
ENDLESS = """
import time
import aid
from container import distributed
from container.checkpoint import Checkpointer
cluster = distributed.init()
import tensorflow as tf, tf_keras as keras

RATE = 2.0 ** -60

class Course(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)
        if cluster.is_chief:
            aid.mark(f"trained-{cluster.size}", float(self.model.optimizer.learning_rate.numpy()) / RATE)
            if batch == 4:
                print("trains", cluster.size, flush=True)

model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer=cluster.optimizer(keras.optimizers.SGD(RATE)), loss="mse")
cluster.fit(
    model, lambda: tf.data.Dataset.range(10**9), parse=lambda x: (tf.cast([x], tf.float32), tf.constant(0.0)),
    global_batch_size=4, epochs=1, callbacks=[Course()], checkpointer=Checkpointer(), commit_every=2, verbose=0,
)
"""

#: Saves after each epoch. The first host's worker dies when the second one comes, which has taken nothing from it yet;
#: the second one then trains for an epoch.
LOSING = """
import os, signal, time
import aid
from container import distributed
from container.checkpoint import Checkpointer
cluster = distributed.init()
import tensorflow as tf, tf_keras as keras

class Course(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.1)
        aid.mark(f"epoch-{epoch}", aid.HOST)
        self.model.stop_training = aid.HOST != "algo-1"

def resized():
    if aid.HOST == "algo-1":
        os.kill(os.getpid(), signal.SIGKILL)

model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer=cluster.optimizer(keras.optimizers.SGD(0.01)), loss="mse")
data = lambda: tf.data.Dataset.range(8).map(lambda x: (tf.cast([x], tf.float32), tf.cast(x, tf.float32)))
cluster.fit(
    model, data, global_batch_size=4, epochs=10_000, seed=1, callbacks=[Course()], checkpointer=Checkpointer(),
    on_reset=resized, verbose=0,
)
"""
