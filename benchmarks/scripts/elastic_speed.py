"""Trainings by ``container.distributed``, elastic or not, that say of each epoch how fast its steps were."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

from epoch_timer import EpochTimer, parse_arguments

from container import distributed
from container.distributed.tensorflow.callbacks import KerasCallback
from container.distributed.tensorflow.elastic import TrainingState

BATCH = 32


class Timer(EpochTimer, KerasCallback):
    """That of Keras."""


def main() -> None:
    """Train, once for each interval of commits."""
    options = parse_arguments()

    cluster = distributed.init()
    import tensorflow as tf

    keras = tf.keras
    (options.folder / f"rank-{cluster.rank}").write_text(str(os.getpid()))
    timer = Timer(options.folder, steps=options.steps, chief=cluster.is_chief, held=bool(options.held))
    TrainingState.save = timer.timed(TrainingState.save)  # type: ignore[method-assign]
    model = keras.Sequential(
        [
            keras.Input((256,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(optimizer=cluster.optimizer(keras.optimizers.Adam(0.001)), loss="mse")
    if cluster.is_chief:
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        (options.folder / "threads").write_text(str(threads))
    size = cluster.size
    for every in (int(word) for word in options.commit_every.split("+")):
        cluster.fit(
            model,
            lambda: tf.data.Dataset.range(options.steps * BATCH * size),
            parse=lambda number: (tf.fill([256], tf.cast(number % 7, tf.float32)), tf.ones([10])),
            global_batch_size=BATCH * size,
            epochs=options.epochs,
            on_resize="keep_global_batch",  # so that an epoch has as many steps when a rank has been killed
            commit_every=every or None,
            callbacks=[timer],
            verbose=0,
        )


if __name__ == "__main__":
    main()
