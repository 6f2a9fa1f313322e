"""Provide a channel in Pipe mode as a ``tf.data.Dataset`` for training scripts.

::

    from container.pipe_dataset import PipeModeDataset

    dataset = PipeModeDataset("train", record_format="TFRecord").map(parse).batch(64)

The class takes the arguments of ``sagemaker_tensorflow.PipeModeDataset`` and works with current TensorFlow, on a
laptop, in containers and on SageMaker. Each iterator reads the channel's next epoch, and so does each repetition of
``repeat()`` and each epoch of ``fit()``. An epoch begins when its first element is requested.

Records are read at TensorFlow's native speed. TensorFlow's own reader of TFRecords reads the FIFO, through a small
library that provisioning compiles (``reader.cc``). Without this library, Python copies the stream into files in memory,
in pieces of some megabytes that end at the end of a record, and TensorFlow's reader reads these files. TensorFlow
cannot read RecordIO, and its reader of lines drops carriage returns; these formats are passed on as batches of records.

For PyTorch, ``PipeModeIterable("train", record_format="TFRecord")`` is an ``IterableDataset`` of the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from container.formats import RecordError
from container.pipe_dataset.faults import PipeError

if TYPE_CHECKING:
    from container.pipe_dataset.dataset import PipeModeDataset
    from container.pipe_dataset.iterable import PipeModeIterable

#: The name of this error in SageMaker's package.
PipeModeDatasetException = PipeError

__all__ = ["PipeError", "PipeModeDataset", "PipeModeDatasetException", "PipeModeIterable", "RecordError"]

#: In separate modules, because one needs TensorFlow and the other PyTorch.
_MODULES = {"PipeModeDataset": "dataset", "PipeModeIterable": "iterable"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
