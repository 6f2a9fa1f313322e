"""Define the dataset: TensorFlow's graph around the readers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from container.pipe_dataset import channels, native, places, readers
from container.pipe_dataset.readers import ReadRequest
from container.pipe_dataset.stream import SEGMENTS

#: Number of bytes that TensorFlow reads from a segment at a time.
_BUFFER = 256 << 10


class PipeModeDataset(tf.data.Dataset):
    """The records of a channel in Pipe mode, as strings.

    Each iterator reads the next epoch.

    Args:
        channel: The channel's name.
        record_format: ``"RecordIO"``, ``"TFRecord"`` or ``"TextLine"``.
        state_dir: The folder that stores the number of the next epoch; None for ``/opt/ml/pipe_state``, or this rank's
            own folder.
        pipe_dir: The folder of the FIFOs; None for ``/opt/ml/input/data``, or this rank's own folder.
        config_dir: The folder of ``inputdataconfig.json``; None for ``/opt/ml/input/config``.
        benchmark: Whether to print time and bytes when an iterator has ended.
        benchmark_records_interval: Number of records after which to print the count; 0 for never. If TensorFlow itself
            reads the records (TFRecord), they are not counted.
        max_corrupted_records_to_skip: Maximum number of damaged records in a row that are skipped, with TFRecord.
            Above 0, checksums are computed in Python, which is slow.

    Attributes:
        channel: The channel's name.
        record_format: The records' format.
        distribution: The channel's ``S3DistributionType``.

    Raises:
        ValueError: the format is unknown, or does not support an option.
        PipeError: the job has no such channel, or the channel is not in Pipe mode.
    """

    def __init__(
        self,
        channel: str,
        record_format: str = "RecordIO",
        state_dir: str | os.PathLike[str] | None = None,
        pipe_dir: str | os.PathLike[str] | None = None,
        config_dir: str | os.PathLike[str] | None = None,
        benchmark: bool = False,
        benchmark_records_interval: int = 0,
        max_corrupted_records_to_skip: int = 0,
    ) -> None:
        self._request = ReadRequest.of(
            channel,
            record_format,
            pipe_dir=pipe_dir,
            state_dir=state_dir,
            benchmark=benchmark,
            interval=benchmark_records_interval,
            tolerated=max_corrupted_records_to_skip,
        )
        self.channel = channel
        self.record_format = record_format
        self.distribution = channels.distribution(channel, config_dir)
        readers.register()
        self._source = _records(self._request)
        super().__init__(self._source._variant_tensor)

    @property
    def element_spec(self) -> Any:
        """Return the specification of an element: a string."""
        return tf.TensorSpec([], tf.string)

    @property
    def holds(self) -> str:
        """Return which part of the channel this process gets: ``"all"``, its ``"host"``'s share, or its own
        (``"rank"``).
        """
        return channels.holds(self.distribution, places.local(os.environ)[1])

    def next_epoch(self) -> int:
        """Return the number of the epoch that the next iterator reads, from 0."""
        return self._request.epochs().next()

    def resume(self, epoch: int, records: int) -> None:
        """Make the next iterator resume within an epoch.

        Args:
            epoch: The epoch, from 0.
            records: Number of consumed records of that epoch.
        """
        readers.resume(self._request, epoch, records)

    def choose(self, epoch: int) -> None:
        """Make every further iterator read one epoch from its beginning, whichever epochs were read before.

        This works only with fleetfit's own agent. An elastic training uses it to redistribute the rest of an epoch.

        Args:
            epoch: The epoch, from 0.
        """
        readers.choose(self._request, epoch)

    def _inputs(self) -> list[Any]:
        return [self._source]


def sources_of(dataset: Any) -> Iterator[PipeModeDataset]:
    """Yield the channels in Pipe mode that a dataset reads."""
    if isinstance(dataset, PipeModeDataset):
        yield dataset
        return
    for source in dataset._inputs():
        yield from sources_of(source)


def _records(request: ReadRequest) -> Any:
    if request.segments:
        if native.library() is not None:
            return _records_of_file(native.name(request.to_text()))
        segments = _generated(request, readers.SEGMENT, tf.TensorSpec([], tf.string))
        # One segment is filled while TensorFlow reads another and two wait. The reader relies on this maximum.
        return segments.prefetch(SEGMENTS - 2).flat_map(_records_of_file)
    batches = _generated(request, readers.RECORDS, tf.TensorSpec([None], tf.string))
    return batches.prefetch(1).flat_map(tf.data.Dataset.from_tensor_slices)


def _records_of_file(name: Any) -> Any:
    """Return the records of a file, as ``tf.data.TFRecordDataset`` does, but without its flat_map: less work per
    record.
    """
    variant = tf.raw_ops.TFRecordDataset(
        filenames=tf.reshape(name, [1]), compression_type="", buffer_size=tf.constant(_BUFFER, tf.int64)
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _generated(request: ReadRequest, function: str, spec: Any) -> Any:
    """Return a dataset of a reader's output; each iterator opens its own reader, and closes it at the end.

    ``Dataset.from_generator`` would not work, because its functions are bound to the process that creates the dataset.
    """
    number = tf.TensorSpec([], tf.int64)

    def call(token: str, argument: Any, dtype: Any) -> Any:
        [found] = tf.raw_ops.PyFunc(input=[argument], token=token, Tout=[dtype])
        return found

    def begin(text: Any) -> Any:
        return tf.ensure_shape(call(readers.OPEN, text, tf.int64), [])

    def go_on(reader: Any) -> Any:
        return tf.ensure_shape(call(function, reader, tf.string), spec.shape)

    def end(reader: Any) -> Any:
        return tf.ensure_shape(call(readers.CLOSE, reader, tf.int64), [])

    variant = tf.raw_ops.GeneratorDataset(
        init_func_other_args=[tf.constant(request.to_text())],
        next_func_other_args=[],
        finalize_func_other_args=[],
        init_func=tf.function(begin).get_concrete_function(tf.TensorSpec([], tf.string)),
        next_func=tf.function(go_on).get_concrete_function(number),
        finalize_func=tf.function(end).get_concrete_function(number),
        output_types=[tf.string],
        output_shapes=[spec.shape],
    )
    return tf.data.experimental.from_variant(variant, spec)
