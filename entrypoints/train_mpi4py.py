"""Train a softmax regression on digits with numpy and mpi4py. The mpi strategy can run any MPI program like this one.

The script does not use fleetfit, Horovod or Keras. Each rank computes the gradient over its records, and one Allreduce
computes the sum of the gradients. Without mpirun, the script trains in one process.

Every ten epochs, rank 0 prints a line with values for metric definitions such as these::

    - loss: ([0-9.]+)    val_accuracy: ([0-9.]+)
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

PIXELS = 64
CLASSES = 10
REPORT_EVERY = 10


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--epochs", type=int, default=400, help="number of epochs; each epoch is one step over all records"
    )
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "data/digits/train"))
    parser.add_argument(
        "--validation", type=Path, default=os.environ.get("SM_CHANNEL_VALIDATION", "data/digits/validation")
    )
    parser.add_argument("--model_dir", help="folder for the model if SM_MODEL_DIR is not set")
    return parser.parse_args(arguments)


def records(file: Path) -> Iterator[bytes]:
    """Yield the contents of the records of a TFRecord file.

    A record consists of the content's length (8 bytes), the length's checksum (4 bytes), the content, and the content's
    checksum (4 bytes). The checksums are not verified.
    """
    with file.open("rb") as stream:
        while header := stream.read(12):
            (length,) = struct.unpack("<Q4x", header)
            yield stream.read(length)
            stream.read(4)


def fields(message: bytes) -> Iterator[bytes]:
    """Yield the contents of a protocol buffer's fields: the bytes of a field with a length, or an encoded varint.

    Only these two types of fields are supported. They suffice for tf.train.Example.
    """
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(message):
        key = varint()
        begin = place
        value = varint()
        if key & 7 == 2:  # the value is the length of the content in bytes
            begin = place
            place += value
        yield message[begin:place]


def parse(record: bytes) -> tuple[np.ndarray, int]:
    """Return the image (64 floats) and the label (an integer below 128) of a serialized tf.train.Example."""
    found: dict[bytes, bytes] = {}
    [features] = fields(record)
    for entry in fields(features):
        name, feature = fields(entry)
        [values] = fields(feature)
        [found[name]] = fields(values)
    return np.frombuffer(found[b"image"], "<f4"), found[b"label"][0]


def read_shard(folder: Path, comm: MPI.Comm) -> tuple[np.ndarray, np.ndarray]:
    """Read this rank's records of a channel: every ``comm.size``-th record, beginning with record ``comm.rank``.

    Returns:
        The images, with a last column of ones, and the labels. Shapes: (records, 65); (records,).
    """
    files = sorted(folder.glob("*.tfrecord"))
    if not files:
        raise SystemExit(f"{folder} has no *.tfrecord files. To make some, run entrypoints/prepare_digits.py")
    every = [record for file in files for record in records(file)]
    parsed = [parse(record) for record in every[comm.rank :: comm.size]]
    images = np.array([np.append(image, 1.0) for image, _ in parsed]).reshape(-1, PIXELS + 1)
    return images, np.array([label for _, label in parsed], int)


def total(comm: MPI.Comm, values: np.ndarray) -> np.ndarray:
    """Return the sum of each value over all ranks. All ranks must call this function."""
    summed = np.empty_like(values)
    comm.Allreduce(values, summed, op=MPI.SUM)
    return summed


def main(options: argparse.Namespace) -> None:
    """Train, and save the weights in SageMaker's folder."""
    comm = MPI.COMM_WORLD
    print(
        f"rank {comm.rank} of {comm.size} on {os.environ.get('SM_CURRENT_HOST', MPI.Get_processor_name())}", flush=True
    )
    images, labels = read_shard(options.train, comm)
    weights = np.zeros((PIXELS + 1, CLASSES))
    comm.Bcast(weights, root=0)
    for epoch in range(options.epochs):
        logits = images @ weights
        logits -= logits.max(axis=1, keepdims=True)
        probabilities = np.exp(logits)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(probabilities[rows, labels]).sum()
        probabilities[rows, labels] -= 1.0
        sums = total(comm, np.append((images.T @ probabilities).ravel(), [loss, len(labels)]))
        weights -= options.learning_rate * sums[:-2].reshape(weights.shape) / sums[-1]
        if (epoch + 1) % REPORT_EVERY == 0:
            accuracy = evaluate(comm, options.validation, weights)
            if comm.rank == 0:
                print(
                    f"epoch: {epoch + 1}/{options.epochs} - loss: {sums[-2] / sums[-1]:.4f}"
                    f" - val_accuracy: {accuracy:.4f}",
                    flush=True,
                )
    if comm.rank == 0:
        save(weights, options)


def evaluate(comm: MPI.Comm, folder: Path, weights: np.ndarray) -> float:
    """Return the accuracy, from 0 to 1, over the records of all ranks. All ranks must call this function."""
    images, labels = read_shard(folder, comm)
    correct, seen = total(comm, np.array([((images @ weights).argmax(axis=1) == labels).sum(), len(labels)], float))
    return float(correct / seen)


def save(weights: np.ndarray, options: argparse.Namespace) -> None:
    """Write the weights, of shape (65, 10), to ``weights.npy`` in SageMaker's folder or ``--model_dir``."""
    directory = os.environ.get("SM_MODEL_DIR") or options.model_dir
    if not directory:
        print("neither SM_MODEL_DIR nor --model_dir is set: the model is not saved", flush=True)
        return
    path = Path(directory, "weights.npy")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, weights)
    print(f"model: {path}", flush=True)


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
