"""Write TensorBoard's event files. On rank 0, the values that Keras logs are written to the job's output folder.

The files are written to ``$SM_OUTPUT_DIR/tensorboard``. This folder is the default of SageMaker's
``TensorBoardOutputConfig`` (``/opt/ml/output/tensorboard``) and of ``fleetfit tensorboard``. A script's own callbacks
may also write to this folder.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np

from container.checkpoint.keras_callback import KerasCallback, Logs

_VARIABLE = "SM_OUTPUT_DIR"

#: Numbers of the files of this process.
_numbers = itertools.count()


def event_folder() -> Path | None:
    """Return the folder of this job's event files. Return None if the script does not run in a job."""
    output = os.environ.get(_VARIABLE)
    return Path(output, "tensorboard") if output else None


class Scalars(KerasCallback):
    """A callback that writes the values that Keras logs for each epoch as scalars. As in Keras, the values of the
    validation are written as a separate run.

    TensorFlow's own ``tf.summary`` is not used, because it requires that TensorBoard is installed on the host.

    Args:
        folder: The folder of the files.
    """

    batch_hooks = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Write the values that Keras has logged for the epoch."""
        for name, value in (logs or {}).items():
            if np.ndim(value) != 0:
                continue
            run, tag = ("validation", name[4:]) if name.startswith("val_") else ("train", name)
            self._write(run, step=epoch, tag=f"epoch_{tag}", value=float(value))
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the files."""
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
