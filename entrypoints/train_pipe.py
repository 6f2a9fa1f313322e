"""Train a digits classifier on a channel in Pipe mode, with any strategy or in one process.

The script runs only in a job with ``TrainingInput(…, input_mode="Pipe")``. The channel may be FullyReplicated or
ShardedByS3Key. Records are read from the channel's FIFO, and are not stored on the host's disk.

With parameter servers, set ``--records``: they need the number of steps per epoch, which the script cannot compute from
a stream without reading the stream.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

# Parameter servers need tf_keras. This variable must be set before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer
from container.pipe_dataset import PipeModeDataset

PIXELS = 64
CLASSES = 10


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="number of records in one step of all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--shuffle", type=int, default=1024, help="records in the shuffle buffer; 0 for none")
    parser.add_argument(
        "--records", type=int, help="number of records in the channel; parameter servers need this number"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--channel", default="train")
    parser.add_argument("--model_dir", help="folder for the model if SM_MODEL_DIR is not set")
    parser.add_argument(
        "--checkpoint-dir",
        default=os.environ.get("SM_CHECKPOINT_DIR"),
        help="folder of the checkpoints (default: SM_CHECKPOINT_DIR, or no checkpoints if it is not set)",
    )
    return parser.parse_args(arguments)


def main(options: argparse.Namespace) -> None:
    """Train, and save the model and the checkpoints in SageMaker's folders."""
    cluster = distributed.init()

    keras = tf.keras

    def read() -> tf.data.Dataset:
        return PipeModeDataset(options.channel, record_format="TFRecord")

    @distributed.vectorized  # each call parses many small records
    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the images and labels of serialized records. Shapes: (records, 64), float32; (records,), int64."""
        example = tf.io.parse_example(
            records,
            {
                "image": tf.io.FixedLenFeature([PIXELS], tf.float32),
                "label": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        return example["image"], example["label"]

    keras.utils.set_random_seed(options.seed)
    with cluster.scope():
        layers = keras.layers
        model = keras.Sequential(
            [
                layers.Input([PIXELS]),
                layers.Reshape([8, 8, 1]),
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPool2D(),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(CLASSES),
            ]
        )
        model.compile(
            optimizer=cluster.optimizer(keras.optimizers.Adam(cluster.scale(options.learning_rate))),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            # A rank that has too few records adds copies with weight 0, so the metric must be weighted. With parameter
            # servers, there are no weights.
            **{"metrics" if cluster.coordinates else "weighted_metrics": ["accuracy"]},
        )
    steps = None
    if cluster.coordinates:
        if options.records is None:
            raise SystemExit("parameter servers need --records, because they train by steps and a stream has no length")
        steps = cluster.steps_per_epoch(read, global_batch_size=options.batch_size, records=options.records)
    checkpointer = Checkpointer(options.checkpoint_dir) if options.checkpoint_dir else None
    history = model.fit(
        cluster.dataset(
            read,
            global_batch_size=options.batch_size,
            parse=parse,
            shuffle=options.shuffle or None,
            seed=options.seed,
        ),
        steps_per_epoch=steps,
        epochs=options.epochs,
        callbacks=cluster.callbacks(checkpointer),
        verbose=2 if cluster.is_chief else 0,
    )
    if cluster.is_chief:
        print(f"accuracy of the last epoch: {history.history['accuracy'][-1]:.4f}", flush=True)
    if options.model_dir or os.environ.get("SM_MODEL_DIR"):
        folder = cluster.export(model, os.environ.get("SM_MODEL_DIR") or options.model_dir)
        if folder is not None:
            print(f"model: {folder}", flush=True)


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
