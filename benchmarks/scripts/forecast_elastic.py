"""An elastic training whose steps take a known time, nearly all of it asleep: so that many fit a small machine.

Rank 0 notes when each step ended, and of how many workers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from container import distributed

STEP_S = float(os.environ["FORECAST_STEP_S"])
RECORDS, BATCH, HOSTS = (int(os.environ[f"FORECAST_{name}"]) for name in ("RECORDS", "BATCH", "HOSTS"))

cluster = distributed.init()
import tensorflow as tf  # noqa: E402 - after init(), which sees to the devices
import tf_keras as keras  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer=cluster.optimizer(keras.optimizers.SGD(0.0)), loss="mse")
steps = Path(os.environ["FORECAST_FOLDER"], f"steps-{os.getpid()}")


class Pace(keras.callbacks.Callback):
    """Sleeps for the rest of each step."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Note the step."""
        time.sleep(STEP_S)
        if cluster.rank == 0:
            with steps.open("a") as file:
                file.write(f"{time.time_ns()} {cluster.size}\n")


cluster.fit(
    model,
    lambda: tf.data.Dataset.range(RECORDS),
    parse=lambda record: (tf.cast(record, tf.float32)[None], tf.constant([0.0])),
    global_batch_size=BATCH * HOSTS,
    epochs=1,
    commit_every=int(os.environ["FORECAST_COMMIT_STEPS"]),
    callbacks=[Pace()],
    verbose=0,
)
