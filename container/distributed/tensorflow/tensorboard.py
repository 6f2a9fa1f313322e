"""TensorBoard's event files: what Keras logs, written by rank 0 into the job's folder.

They go to ``tensorboard`` in ``$SM_OUTPUT_DIR``, where SageMaker's ``TensorBoardOutputConfig`` looks by default
(``/opt/ml/output/tensorboard``) and ``fleetfit tensorboard`` does. A script's own callbacks may write there too.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np

from container.distributed.tensorflow.hooks import Callback, Logs

_VARIABLE = "SM_OUTPUT_DIR"

#: Of the files of this process.
_numbers = itertools.count()


def event_folder() -> Path | None:
    """Return where this job's event files go; None outside a job."""
    output = os.environ.get(_VARIABLE)
    return Path(output, "tensorboard") if output else None


class Scalars(Callback):
    """Writes each epoch's logs as scalars, those of the validation as a run of their own, as Keras does.

    TensorFlow's own ``tf.summary`` needs TensorBoard where the training runs; the files are simple enough without.

    Args:
        folder: Where to.
    """

    batch_hooks = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write."""
        for name, value in (logs or {}).items():
            if np.ndim(value) != 0:
                continue
            run, tag = ("validation", name[4:]) if name.startswith("val_") else ("train", name)
            self._write(run, step=epoch, tag=f"epoch_{tag}", value=float(value))
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, run: str, *, step: int, tag: str, value: float) -> None:
        import tensorflow as tf

        now = time.time()
        if run not in self._writers:
            folder = self._folder / run
            folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}.v2"
            self._writers[run] = tf.io.TFRecordWriter(str(folder / name))
            header = tf.compat.v1.Event(wall_time=now, file_version="brain.Event:2")
            self._writers[run].write(header.SerializeToString())
        summary = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(tag=tag, simple_value=value)])
        event = tf.compat.v1.Event(wall_time=now, step=step, summary=summary)
        self._writers[run].write(event.SerializeToString())
