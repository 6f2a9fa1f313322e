"""Leaves while its stream stands still and the iterator of the next epoch is being made. ``leaving.py BASE WAY``

BASE is a host's tree, with a FIFO that has some records and is neither fed further nor closed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf

from container import distributed
from container.distributed.tensorflow.iterator_prefetch import EpochsAhead
from container.pipe_dataset import PipeModeDataset

os.environ["SM_INPUT_DIR"] = str(Path(sys.argv[1]) / "input")


class Told(tf.data.Dataset):
    """Epochs that tell when an iterator of them is being made."""

    def __init__(self, epochs: Any) -> None:
        self._epochs = epochs
        self.begun = threading.Semaphore(0)
        super().__init__(epochs._variant_tensor)

    @property
    def element_spec(self) -> Any:
        return self._epochs.element_spec

    def _inputs(self) -> list[Any]:
        return [self._epochs]

    def __iter__(self) -> Any:
        self.begun.release()
        return iter(self._epochs)


def leave(*_: Any) -> None:
    sys.exit(3)


cluster = distributed.init()
epochs = Told(cluster.dataset(lambda: PipeModeDataset("train", "TFRecord"), global_batch_size=2, shuffle=None))
present = iter(EpochsAhead(epochs))
print(next(present).numpy().tolist(), flush=True)  # and the threads of TensorFlow's wait for more
epochs.begun.acquire()
epochs.begun.acquire()  # the next one
if sys.argv[2] == "SIGTERM":
    signal.signal(signal.SIGTERM, leave)
    os.kill(os.getpid(), signal.SIGTERM)
raise RuntimeError("something went wrong")
