"""Provide a channel in Pipe mode as a ``tf.data.Dataset`` for training scripts. In Pipe mode, a script reads a
channel's records from a FIFO, not from files.

::

    from container.pipe_dataset import PipeModeDataset

    dataset = PipeModeDataset("train", record_format="TFRecord").map(parse).batch(64)

The class has the arguments of ``sagemaker_tensorflow.PipeModeDataset``. The class works with current TensorFlow, on a
laptop, in containers and on SageMaker. Each iterator reads the channel's next epoch. Each repetition of ``repeat()``
and each epoch of ``fit()`` creates an iterator. An epoch begins when its first element is requested.

Records are read at TensorFlow's native speed. TensorFlow's reader of TFRecords reads the FIFO through a small library
(``reader.cc``). Provisioning, which installs a job's Python environment, compiles this library. Without this library,
Python copies the stream into files in memory, and TensorFlow's reader reads these files. Each of these files contains
some megabytes and ends at the end of a record.
TensorFlow cannot read RecordIO, and its reader of lines drops carriage returns. Therefore Python reads records of these
two formats and passes them to TensorFlow in batches.

For PyTorch, ``PipeModeIterable("train", record_format="TFRecord")`` is an ``IterableDataset`` of the same records.
Importing this package imports neither TensorFlow nor PyTorch.
"""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
