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

For PyTorch, ``PipeModeIterable("train", record_format="TFRecord")`` is an ``IterableDataset`` of the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from container.formats import RecordError
from container.pipe_dataset.faults import PipeError

if TYPE_CHECKING:
    from container.pipe_dataset.dataset import PipeModeDataset
    from container.pipe_dataset.iterable import PipeModeIterable

#: The name that SageMaker's package has for it.
PipeModeDatasetException = PipeError

__all__ = ["PipeError", "PipeModeDataset", "PipeModeDatasetException", "PipeModeIterable", "RecordError"]

#: Of which one needs TensorFlow, and the other PyTorch.
_MODULES = {"PipeModeDataset": "dataset", "PipeModeIterable": "iterable"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
