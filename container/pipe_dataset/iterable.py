"""Provide a channel in Pipe mode as a PyTorch ``IterableDataset``, without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator

from torch.utils.data import IterableDataset, get_worker_info

from container.pipe_dataset import channels, places, readers
from container.pipe_dataset.faults import PipeError
from container.pipe_dataset.readers import ReadRequest


class PipeModeIterable(IterableDataset):
    """The records of a channel in Pipe mode, as bytes. Each iterator reads the next epoch. The checksums of the data in
    TFRecords are not verified.

    ``cluster.loader()`` divides the records among the ranks. Therefore every rank must get all records of the channel
    (FullyReplicated).

    Args:
        channel: The channel's name.
        record_format: The format of the records: ``"RecordIO"``, ``"TFRecord"`` or ``"TextLine"``.
        state_dir: The folder that stores the number of the next epoch. If None and the host has several ranks, this
            rank's own folder. If None and the host has one rank, ``/opt/ml/pipe_state``.
        pipe_dir: The folder of the FIFOs. If None and the host has several ranks, this rank's own folder. If None and
            the host has one rank, ``/opt/ml/input/data``.
        config_dir: The folder of ``inputdataconfig.json``. If None, ``/opt/ml/input/config``.

    Raises:
        ValueError: the format is unknown.
        PipeError: the job has no such channel, or the channel is not in Pipe mode.
    """

    def __init__(
        self,
        channel: str,
        record_format: str = "RecordIO",
        state_dir: str | os.PathLike[str] | None = None,
        pipe_dir: str | os.PathLike[str] | None = None,
        config_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._request = ReadRequest.of(channel, record_format, pipe_dir=pipe_dir, state_dir=state_dir)
        self.channel = channel
        self.distribution = channels.distribution(channel, config_dir)

    @property
    def holds(self) -> str:
        """Return which records of the channel this process gets.

        Returns:
            "all" if every process gets all records, "host" if the process gets all records of its host, or "rank" if
            each rank of the host gets different records.
        """
        return channels.holds(self.distribution, places.local(os.environ)[1])

    def resume(self, epoch: int, records: int) -> None:
        """Make the next iterator resume within an epoch.

        Args:
            epoch: The number of the epoch, from 0.
            records: The number of records of that epoch that were consumed before.
        """
        readers.resume(self._request, epoch, records)

    def __iter__(self) -> Iterator[bytes]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise PipeError(
                f"channel {self.channel!r}: {worker.num_workers} workers would read one FIFO, and each would get "
                "pieces of records. Use num_workers=0 or 1."
            )
        reader = readers.open_stream(self._request)
        try:
            while (found := reader.next_records()) is not None:
                yield from found
        finally:
            reader.close()
