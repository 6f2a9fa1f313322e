"""Define the TensorFlow dataset that reads a channel in Pipe mode."""

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
        record_format: The format of the records: ``"RecordIO"``, ``"TFRecord"`` or ``"TextLine"``.
        state_dir: The folder that stores the number of the next epoch. If None and the host has several ranks, this
            rank's own folder. If None and the host has one rank, ``/opt/ml/pipe_state``.
        pipe_dir: The folder of the FIFOs. If None and the host has several ranks, this rank's own folder. If None and
            the host has one rank, ``/opt/ml/input/data``.
        config_dir: The folder of ``inputdataconfig.json``. If None, ``/opt/ml/input/config``.
        benchmark: Whether to print the time and the number of bytes when an iterator has ended.
        benchmark_records_interval: The number of records after which to print the count; 0 for never. TFRecords are not
            counted if TensorFlow itself reads them.
        max_corrupted_records_to_skip: How many damaged TFRecords in a row are skipped before an error is raised. If the
            number is above 0, checksums are computed in Python, which is slow.

    Attributes:
        channel: The channel's name.
        record_format: The name of the records' format.
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
        """Return the specification of an element, which is a string."""
        return tf.TensorSpec([], tf.string)

    @property
    def holds(self) -> str:
        """Return which records of the channel this process gets.

        Returns:
            "all" if every process gets all records, "host" if the process gets all records of its host, or "rank" if
            each rank of the host gets different records.
        """
        return channels.holds(self.distribution, places.local(os.environ)[1])

    def next_epoch(self) -> int:
        """Return the number of the epoch that the next iterator reads, counted from 0."""
        return self._request.epochs().next()

    def resume(self, epoch: int, records: int) -> None:
        """Make the next iterator resume within an epoch.

        Args:
            epoch: The number of the epoch, from 0.
            records: The number of records of that epoch that were consumed before.
        """
        readers.resume(self._request, epoch, records)

    def choose(self, epoch: int) -> None:
        """Make every later iterator read the same epoch, from the epoch's beginning.

        The method needs fleetfit's host agent, which writes the FIFOs, and does not work on SageMaker. Elastic training
        uses this method to redistribute the rest of an epoch.

        Args:
            epoch: The number of the epoch, from 0.
        """
        readers.choose(self._request, epoch)

    def _inputs(self) -> list[Any]:
        return [self._source]


def sources_of(dataset: Any) -> Iterator[PipeModeDataset]:
    """Yield the datasets of channels in Pipe mode that a dataset reads."""
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
    """Return the records of a file, as ``tf.data.TFRecordDataset`` does.

    ``TFRecordDataset`` is not used because it calls ``flat_map``, which takes additional time for each record.
    """
    variant = tf.raw_ops.TFRecordDataset(
        filenames=tf.reshape(name, [1]), compression_type="", buffer_size=tf.constant(_BUFFER, tf.int64)
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _generated(request: ReadRequest, function: str, spec: Any) -> Any:
    """Return a dataset of the elements that Python readers return. Each iterator opens a reader at its beginning, and
    closes the reader at its end.

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
