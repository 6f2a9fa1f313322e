"""For training scripts: a channel in Pipe mode as a ``tf.data.Dataset``.

::

    from container.pipe_dataset import PipeModeDataset

    dataset = PipeModeDataset("train", record_format="TFRecord").map(parse).batch(64)

It takes the arguments of ``sagemaker_tensorflow.PipeModeDataset`` and works with current TensorFlow, on a laptop, in
containers and on SageMaker. Each iterator reads the channel's next epoch, so that ``repeat()`` and the epochs of
``fit()`` do too; an epoch begins when its first element is asked for.

Records keep TensorFlow's native speed. Its own reader of TFRecords reads the FIFO, through a small library that
provisioning compiles (``reader.cc``). Where there is none, Python moves the stream into files in memory, in pieces of
some megabytes that end where a record ends, and TensorFlow's reader reads these. Lines and RecordIO, of which
TensorFlow knows nothing or which it changes (it drops carriage returns), are handed over as batches of records.
"""

from __future__ import annotations

from container.formats import RecordError
from container.pipe_dataset.dataset import PipeModeDataset
from container.pipe_dataset.faults import PipeError

#: The name that SageMaker's package has for it.
PipeModeDatasetException = PipeError

__all__ = ["PipeError", "PipeModeDataset", "PipeModeDatasetException", "RecordError"]
