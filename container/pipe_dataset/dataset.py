"""The dataset: TensorFlow's graph around the readers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from container.pipe_dataset import channels, native, places, readers
from container.pipe_dataset.readers import ReadRequest
from container.pipe_dataset.stream import SEGMENTS

#: TensorFlow reads a segment in steps of this many bytes.
_BUFFER = 256 << 10


class PipeModeDataset(tf.data.Dataset):
    """The records of a channel in Pipe mode, as strings.

    Each iterator reads the next epoch.

    Args:
        channel: The channel's name.
        record_format: ``"RecordIO"``, ``"TFRecord"`` or ``"TextLine"``.
        state_dir: Where the number of the next epoch is kept; None for ``/opt/ml/pipe_state``, or a folder of this
            rank's own.
        pipe_dir: The folder of the FIFOs; None for ``/opt/ml/input/data``, or this rank's own.
        config_dir: The folder of ``inputdataconfig.json``; None for ``/opt/ml/input/config``.
        benchmark: Whether to print time and bytes when an iterator is done.
        benchmark_records_interval: After how many records to print how many there were; 0 for never. Where TensorFlow
            reads by itself (TFRecord), records are not counted.
        max_corrupted_records_to_skip: How many damaged records in a row are left out, with TFRecord. Above 0,
            checksums are computed in Python, which is slow.

    Attributes:
        channel: The channel's name.
        record_format: The records' format.
        distribution: The channel's ``S3DistributionType``.

    Raises:
        ValueError: an unknown format, or an option that it does not have.
        PipeError: the job has no such channel, or it is not in Pipe mode.
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
        """A string."""
        return tf.TensorSpec([], tf.string)

    @property
    def holds(self) -> str:
        """What this process gets of the channel: ``"all"``, its ``"host"``'s share, or its own, the ``"rank"``'s."""
        return channels.holds(self.distribution, places.local(os.environ)[1])

    def next_epoch(self) -> int:
        """Return the number of the epoch that the next iterator reads, from 0."""
        return self._request.epochs().next()

    def resume(self, epoch: int, records: int) -> None:
        """Let the next iterator go on within an epoch.

        Args:
            epoch: The epoch, from 0.
            records: How many of its records were consumed.
        """
        readers.resume(self._request, epoch, records)

    def choose(self, epoch: int) -> None:
        """Let every iterator from now on read one epoch from its beginning, whichever were read before.

        Only fleetfit's own agent can do so; what an elastic training deals out anew is read so.

        Args:
            epoch: The epoch, from 0.
        """
        readers.choose(self._request, epoch)

    def _inputs(self) -> list[Any]:
        return [self._source]


def sources_of(dataset: Any) -> Iterator[PipeModeDataset]:
    """Return the channels in Pipe mode that a dataset is made of."""
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
        # One segment is filled while another is read and two wait. The reader counts on it that there are not more.
        return segments.prefetch(SEGMENTS - 2).flat_map(_records_of_file)
    batches = _generated(request, readers.RECORDS, tf.TensorSpec([None], tf.string))
    return batches.prefetch(1).flat_map(tf.data.Dataset.from_tensor_slices)


def _records_of_file(name: Any) -> Any:
    """Read as ``tf.data.TFRecordDataset``, without the flat_map inside it: one step less for each record."""
    variant = tf.raw_ops.TFRecordDataset(
        filenames=tf.reshape(name, [1]), compression_type="", buffer_size=tf.constant(_BUFFER, tf.int64)
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _generated(request: ReadRequest, function: str, spec: Any) -> Any:
    """Make a dataset of a reader's output; each iterator has a reader of its own, which ends with it.

    ``Dataset.from_generator`` would do, were its functions not bound to the process that makes the dataset.
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
